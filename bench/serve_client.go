package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// ServeClientName is the scenario's other process, which asks. It reads a job from standard input and writes
// what it has seen to standard output: it is not for users.
const ServeClientName = "serve-client"

// What a client does.
const (
	jobStreams = "streams" // one stream for each prompt, all at once
	jobClosed  = "closed"  // so many clients ask again and again for a while
	jobOpen    = "open"    // requests come at a rate for a while, whatever becomes of those before
	jobVanish  = "vanish"  // as streams, and then the clients are gone all at once
)

// clientJob is what a client is told.
type clientJob struct {
	Kind    string
	Addr    string
	Model   string
	Prompts []string
	Tokens  int
	Clients int     // of closed; of open the most that ask at a time
	Rate    float64 // of open, a second
	Burst   int     // of open, that come besides at the beginning, within fillTime
	Seconds float64
}

// clientNews is what it tells.
type clientNews struct {
	Begun bool          // all streams have begun; more follows
	Took  time.Duration // streams: from when they had begun to the end of the last
	CPU   time.Duration // meanwhile, of the client's process
	Texts []string      // of streams
	Asked clientCounts  // closed and open
	Error string
}

// clientCounts is what became of requests.
type clientCounts struct {
	Done, Refused, Unsent, Failed int
	Failure                       string  // the first
	Silent                        int     // refusals without Retry-After
	Times                         []int64 // us from the request to the refusal
}

// ServeClient does what a job on in says.
func ServeClient(ctx context.Context, in io.Reader, out io.Writer) error {
	var j clientJob
	if err := json.NewDecoder(in).Decode(&j); err != nil {
		return fmt.Errorf("%s is run by the scenario serve: its job: %w", ServeClientName, err)
	}
	w := json.NewEncoder(out)
	tell := func(n clientNews) error { return w.Encode(n) }
	var err error
	switch j.Kind {
	case jobStreams, jobVanish:
		err = j.streams(ctx, tell)
	case jobClosed, jobOpen:
		err = j.load(ctx, tell)
	default:
		err = fmt.Errorf("no job %q", j.Kind)
	}
	if err != nil {
		return tell(clientNews{Error: err.Error()})
	}
	return nil
}

// body is a request for a stream.
func (j *clientJob) body(prompt string) []byte {
	b, err := json.Marshal(map[string]any{
		"model": j.Model, "prompt": prompt, "max_tokens": j.Tokens, "stream": true, "temperature": 0,
	})
	if err != nil {
		panic("BUG: " + err.Error()) // text and numbers
	}
	return b
}

// streams reads one stream for each prompt. It does so with as little of its own as can be, for it shares the
// machine with what it measures: once a stream has begun it is woken for 16 KiB or the end of it, where the
// system can do that, and what comes is kept as bytes and looked into when all is over.
func (j *clientJob) streams(ctx context.Context, tell func(clientNews) error) error {
	var (
		wg    sync.WaitGroup
		begun sync.WaitGroup
		conns = make([]net.Conn, len(j.Prompts))
		raw   = make([][]byte, len(j.Prompts))
		errs  = make([]error, len(j.Prompts))
	)
	begun.Add(len(conns))
	defer func() {
		for _, c := range conns {
			if c != nil {
				_ = c.Close() // read to its end, or given up
			}
		}
		wg.Wait()
	}()
	var d net.Dialer
	for i := range conns {
		c, err := d.DialContext(ctx, "tcp", j.Addr)
		if err != nil {
			return err
		}
		conns[i] = c
	}
	stop := context.AfterFunc(ctx, func() {
		for _, c := range conns {
			_ = c.Close() // ends its reader
		}
	})
	defer stop()
	for i, c := range conns {
		wg.Go(func() { raw[i], errs[i] = j.stream(c, j.Prompts[i], sync.OnceFunc(begun.Done)) })
	}
	begun.Wait()
	start, cpu := time.Now(), processCPU()
	if err := tell(clientNews{Begun: true}); err != nil {
		return err
	}
	if j.Kind == jobVanish {
		for i, c := range conns {
			if t, ok := c.(*net.TCPConn); ok && i%2 == 0 {
				_ = t.SetLinger(0) // half of them leave with a reset
			}
			_ = c.Close() // that is the point
		}
		return tell(clientNews{Took: time.Since(start)})
	}
	wg.Wait()
	n := clientNews{Took: time.Since(start), CPU: processCPU() - cpu, Texts: make([]string, len(raw))}
	for i := range raw {
		if errs[i] != nil {
			return errs[i]
		}
		var err error
		if n.Texts[i], err = streamText(raw[i]); err != nil {
			return fmt.Errorf("stream %d: %w", i, err)
		}
	}
	return tell(n)
}

const (
	streamMost = 64 << 20 // of a stream is kept
	streamRead = 16 << 10 // at once
)

// stream asks on a connection and reads to its end.
func (j *clientJob) stream(c net.Conn, prompt string, begun func()) ([]byte, error) {
	defer begun() // also where nothing comes
	body := j.body(prompt)
	head := fmt.Sprintf("POST /v1/completions HTTP/1.1\r\nHost: %s\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n",
		j.Addr, len(body))
	if _, err := c.Write(append([]byte(head), body...)); err != nil {
		return nil, err
	}
	var all []byte
	buf, mark := make([]byte, streamRead), []byte("data: ")
	for first := true; len(all) < streamMost; {
		n, err := c.Read(buf)
		all = append(all, buf[:n]...)
		if first && bytes.Contains(all, mark) {
			first = false
			patient(c, streamRead)
			begun()
		}
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("a stream of more than %d bytes", streamMost)
}

// streamText is the text of a whole answer.
func streamText(raw []byte) (string, error) {
	res, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(raw)), nil)
	if err != nil {
		return "", err
	}
	defer res.Body.Close() //nolint:errcheck // it is in memory
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return "", err
	}
	if res.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %.200s", res.Status, body)
	}
	var text strings.Builder
	for line := range strings.Lines(string(body)) {
		data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			return text.String(), nil
		}
		var o struct {
			Choices []struct{ Text string }
			Error   *struct{ Message string }
		}
		if err := json.Unmarshal([]byte(data), &o); err != nil {
			return "", err
		}
		if o.Error != nil {
			return "", errors.New(o.Error.Message)
		}
		for _, c := range o.Choices {
			text.WriteString(c.Text)
		}
	}
	return "", errors.New("the stream ends in the middle")
}

// client is a client at work.
type client struct {
	news *json.Decoder
	end  func() error
}

// startClient gives a job to a process of its own, or, without a command, to a goroutine of this one.
func startClient(ctx context.Context, command []string, j clientJob) (*client, error) {
	job, err := json.Marshal(j)
	if err != nil {
		panic("BUG: " + err.Error()) // text and numbers
	}
	ctx, cancel := context.WithCancel(ctx)
	if len(command) == 0 {
		r, w := io.Pipe()
		ended := make(chan struct{})
		go func() { // ends with its job, or with cancel
			defer close(ended)
			_ = w.CloseWithError(ServeClient(ctx, bytes.NewReader(job), w)) // its reader finds out
		}()
		return &client{json.NewDecoder(r), func() error { cancel(); _ = r.Close(); <-ended; return nil }}, nil
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdin = bytes.NewReader(job)
	if j.Kind == jobClosed || j.Kind == jobOpen {
		cmd.Env = append(cmd.Environ(), "GOMAXPROCS=1") // threads that wake each other take from the server
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		cancel()
		return nil, fmt.Errorf("the client's process: %w", err)
	}
	return &client{json.NewDecoder(out), func() error { defer cancel(); return cmd.Wait() }}, nil
}

// next waits for what it tells.
func (c *client) next() (clientNews, error) {
	var n clientNews
	if err := c.news.Decode(&n); err != nil {
		return n, fmt.Errorf("the client is gone: %w", err)
	}
	if n.Error != "" {
		return n, fmt.Errorf("the client: %s", n.Error)
	}
	return n, nil
}
