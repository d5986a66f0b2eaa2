package engine

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"kvasir/engine/gguf"
	"kvasir/engine/tiny"
	"kvasir/internal/moe"
	"kvasir/kernels/ref"
	"kvasir/wire"
	"kvasir/wire/link"
	"kvasir/wire/seal"
	"kvasir/wire/ws"
)

// tape keeps the rows that a model sends to its experts, and what comes back, by layer.
type tape struct {
	next moe.Experts
	in   []*moe.Batch
	out  []*moe.Partials
	seen []int // rows
}

const taped = 1536 // tokens that are kept

func (k *tape) Forward(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
	if err := k.next.Forward(ctx, b, out); err != nil {
		return err
	}
	for len(k.in) <= b.Layer {
		batch, err := moe.NewBatch(moe.Shape{Layer: len(k.in), Hidden: b.Hidden, Format: b.Format}, taped, taped*moe.MaxTopK)
		if err != nil {
			return err
		}
		var p moe.Partials
		p.Reset(taped, b.Hidden)
		k.in, k.out, k.seen = append(k.in, batch), append(k.out, &p), append(k.seen, 0)
	}
	for r := range b.Rows {
		if k.seen[b.Layer] == taped {
			break
		}
		joinRows(k.in[b.Layer], b, r, 1)
		k.out[b.Layer].AddRow(k.seen[b.Layer], out, r)
		k.seen[b.Layer]++
	}
	return nil
}

// joinRows appends to dst one row made of n rows of src, from row r on, with the picks of the first.
func joinRows(dst, src *moe.Batch, r, n int) {
	row := dst.Row(dst.Grow(src.Picks(r)))
	for i := range n {
		part := src.Row(r + i)
		copy(row.Q[i*src.Hidden:], part.Q)
		copy(row.Scales[i*len(part.Scales):], part.Scales)
	}
}

// tapeTiny has kvasir-tiny read the calibration text with its measured profile.
func tapeTiny(t *testing.T) *tape {
	t.Helper()
	f, err := gguf.Parse(tiny.Model(), tiny.Name)
	if err != nil {
		t.Fatal(err)
	}
	e := &Engine{name: f.Name, file: f}
	if err := e.assemble(func(layers int) (p ref.Profile, measured bool, err error) { return loadProfile("", layers) }); err != nil {
		t.Fatal(err)
	}
	defer e.Close() //nolint:errcheck // it was only read
	tokens, err := e.tokens.Encode(calibrationText, true)
	if err != nil {
		t.Fatal(err)
	}
	k := &tape{next: e.experts}
	for at := 0; at < taped; at += calibrationChunk {
		if err := e.gauge(t.Context(), k, tokens[at:at+calibrationChunk]); err != nil {
			t.Fatal(err)
		}
	}
	return k
}

// dispatchOf is a dispatch of rows of a layer and its answer.
type dispatchOf struct {
	b   *moe.Batch
	out *moe.Partials
}

// wide returns a dispatch whose rows and partials are each made of width rows of the tape, every layer's
// in turn: values distributed as those of kvasir-tiny, block for block.
func (k *tape) wide(t *testing.T, width, rows, topK int) dispatchOf {
	t.Helper()
	from := k.in[0]
	b, err := moe.NewBatch(moe.Shape{Hidden: width * from.Hidden, Format: from.Format}, rows, rows*topK)
	if err != nil {
		t.Fatal(err)
	}
	var out moe.Partials
	out.Reset(rows, b.Hidden)
	expert, weight := make([]uint16, topK), make([]float32, topK)
	for r := range rows {
		layer, at := r%len(k.in), r/len(k.in)*width
		joinRows(b, k.in[layer], at, width)
		for i := range expert { // as many as the wide model has; which ones does not change the count
			expert[i], weight[i] = uint16(i), 1
		}
		b.Expert = append(b.Expert[:r*topK], expert...)
		b.Weight = append(b.Weight[:r*topK], weight...)
		b.First[r+1] = int32((r + 1) * topK)
		for i := range width {
			if k.out[layer].Status[at+i] != moe.OK {
				t.Fatalf("layer %d, row %d is %v", layer, at+i, k.out[layer].Status[at+i])
			}
			copy(out.Row(r)[i*from.Hidden:], k.out[layer].Row(at+i))
		}
	}
	return dispatchOf{b, &out}
}

// Bytes around a chunk on the worker's leg.
const (
	record     = 5 + 1 + 16 // TLS 1.3: header, type, tag
	frame      = 4          // WebSocket, of 126 to 65,535 bytes
	masked     = 4          // worker to hub
	smallFrame = 2          // up to 125 bytes
)

// onTheWire returns the bytes of a message on the worker's leg: message, chunk headers, inner records,
// frames, outer records.
func onTheWire(payload, mask int) (n int) {
	for left := payload; left > 0; left -= wire.MaxPayload {
		chunk := record + wire.HeaderLen + min(left, wire.MaxPayload)
		if chunk > 125 {
			n += chunk + frame + mask + record
		} else {
			n += chunk + smallFrame + mask + record
		}
	}
	return n
}

// metered counts what is written to a connection.
type metered struct {
	net.Conn
	out atomic.Int64
}

func (m *metered) Write(p []byte) (int, error) {
	m.out.Add(int64(len(p))) // before: whoever reads it may be quicker than this goroutine
	return m.Conn.Write(p)
}

// replay answers every batch with the same partials.
type replay struct{ out *moe.Partials }

func (r replay) Forward(_ context.Context, b *moe.Batch, out *moe.Partials) error {
	out.Reset(r.out.Rows, r.out.Hidden)
	copy(out.Sum, r.out.Sum)
	return nil
}

// sealedPath returns a session over all layers of the path: TLS as to a gateway, WebSocket, the inner TLS
// session, and link; and a meter at each end of the connection beneath.
func sealedPath(t *testing.T, hidden int, x moe.Experts) (s *link.Session, backbone, worker *metered) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // of a test
	a, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	backbone, worker = &metered{Conn: b}, &metered{Conn: a}

	root, bk, wk, now := seal.NewKey(), seal.NewKey(), seal.NewKey(), time.Now()
	grant, err1 := seal.SignGrant(root, seal.Grant{Role: seal.Backbone, Key: bk.Public(), Issued: now})
	token, err2 := seal.SignToken(root, seal.Token{Role: seal.Worker, Hub: "hub", Issued: now})
	proof, err3 := seal.ProveToken(wk, token, seal.Challenge{Hub: "hub", Nonce: "bm9uY2U"}, "/worker")
	cert, err4 := seal.OuterCertificate(bk, grant)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		t.Fatal(err)
	}
	hello := wire.Hello{Layers: 4, Experts: 32, Hidden: hidden, Model: wire.Hash{1}, Window: 64 << 20}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() {
		served <- func() error {
			outer := tls.Client(worker, &tls.Config{InsecureSkipVerify: true, DynamicRecordSizingDisabled: true}) //nolint:gosec // of a test
			inner, err := seal.Client(ctx, ws.NetConn(ws.New(outer, ws.Client, nil, ws.Options{})),
				seal.ClientConfig{Self: wk, Root: root.Public(), Paired: grant, Now: time.Now})
			if err != nil {
				return err
			}
			return link.Serve(ctx, inner, link.Worker{Experts: x}, link.Options{Hello: hello})
		}()
	}()
	outer := tls.Server(backbone, &tls.Config{Certificates: []tls.Certificate{cert}, SessionTicketsDisabled: true,
		DynamicRecordSizingDisabled: true, MinVersion: tls.VersionTLS13})
	inner, err := seal.Server(ctx, ws.NetConn(ws.New(outer, ws.Server, nil, ws.Options{})),
		seal.ServerConfig{Self: bk, Root: root.Public(), Paired: proof})
	if err == nil {
		s, err = link.Open(ctx, inner, link.Options{Hello: hello})
	}
	if err != nil {
		cancel()
		_, _ = a.Close(), b.Close()
		t.Fatal(err, <-served)
	}
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
		_ = s.Close()
	})
	return s, backbone, worker
}

// TestBytesOfADispatch counts what a dispatch of 512 rows and its partials take on the worker's leg, with
// everything around them.
func TestBytesOfADispatch(t *testing.T) {
	k := tapeTiny(t)
	const rows = 512
	for _, tt := range []struct {
		name        string
		width, topK int
		out, back   float64 // bytes a row, at most
	}{
		{"kvasir-tiny", 1, 4, 1.2 * 256, 1.8 * 256},
		{"hidden 3072 of values as in kvasir-tiny", 12, 8, 3200, 5400},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if testing.Short() && tt.width > 1 {
				t.Skip("wide rows take the way of narrow ones, and compute for long")
			}
			d := k.wide(t, tt.width, rows, tt.topK)
			out := onTheWire(wire.DispatchSize(d.b.Shape, rows, len(d.b.Expert)), 0)
			back := onTheWire(len(wire.AppendPartials(nil, d.out)), masked)

			s, backbone, worker := sealedPath(t, d.b.Hidden, replay{d.out})
			sent, answered := backbone.out.Load(), worker.out.Load()
			var got moe.Partials
			if err := s.Forward(t.Context(), d.b, &got); err != nil {
				t.Fatal(err)
			}
			sent, answered = backbone.out.Load()-sent, worker.out.Load()-answered
			values := float64(rows * d.b.Hidden)
			t.Logf("%d rows of %d, counted: %.1f bytes a row out and %.1f back; %.3f and %.3f a value", rows, d.b.Hidden,
				float64(out)/rows, float64(back)/rows, float64(out)/values, float64(back)/values)
			t.Logf("%d rows of %d, on the socket, with Credit: %.1f bytes a row out and %.1f back; %.3f and %.3f a value", rows, d.b.Hidden,
				float64(sent)/rows, float64(answered)/rows, float64(sent)/values, float64(answered)/values)
			for _, c := range []struct {
				what             string
				counted, measure int64
				most             float64
			}{{"out", int64(out), sent, tt.out}, {"back", int64(back), answered, tt.back}} {
				if float64(c.measure) > c.most*rows {
					t.Errorf("%s: %.1f bytes a row, want at most %.1f", c.what, float64(c.measure)/rows, c.most)
				}
				// Credit for what comes the other way, and Ping, are all that is not counted: a message of 8
				// bytes every 32 KiB.
				if c.measure < c.counted || float64(c.measure-c.counted) > 0.01*float64(c.counted)+1000 {
					t.Errorf("%s: %d bytes on the socket, and the messages make %d", c.what, c.measure, c.counted)
				}
			}
		})
	}
}
