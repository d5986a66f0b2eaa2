package engine

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"kvasir/engine/batches"
	"kvasir/engine/serve"
)

// BatchRun is a batch job without a server.
type BatchRun struct {
	Input  string // JSONL file of requests
	Output string // of answers
	Errors string // of lines that failed; made only if there are any
	// Progress is told how the job stands, now and then; may be nil.
	Progress func(b *batches.Batch)
}

// Errors of RunBatch; each says what to do.
var (
	// ErrOtherInput: what is left of an interrupted run is of another input.
	ErrOtherInput = errors.New("is left of a run over another input: delete it, or give another output")
	// ErrOtherModel: what is left of an interrupted run is of another model.
	ErrOtherModel = errors.New("is left of a run with another model: take that one again, delete what is left, or give another output")
	// ErrOutput: the answers cannot go where they are wanted.
	ErrOutput = errors.New("give another file for the output")
	// ErrLines: the input is wrong.
	ErrLines = errors.New("nothing was computed, since the input is wrong")
)

// progressTime is how often Progress is told.
const progressTime = 200 * time.Millisecond

// folder is where an interrupted run is kept, to go on with.
func (r *BatchRun) folder() string { return r.Output + ".part" }

// RunBatch answers all lines of a file and puts the answers into another. When ctx ends, or the process, the
// same run goes on with the lines that have no answer yet. After ErrLines the batch says what is wrong.
func (e *Engine) RunBatch(ctx context.Context, r BatchRun) (b *batches.Batch, err error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	sum, endpoint, err := inspectLines(r.Input)
	if err != nil {
		return nil, err
	}
	is := map[string]string{"sha256": sum, "model": e.Name(), "hash": e.arithmetic()}
	fresh := false
	if _, err := os.Stat(r.folder()); errors.Is(err, os.ErrNotExist) {
		fresh = true
	}
	if err := os.MkdirAll(r.folder(), 0o700); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(r.folder(), lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer lock.Close() //nolint:errcheck // nothing is written
	if err := lockFile(lock); err != nil {
		return nil, fmt.Errorf("%s: another process answers this batch (%w); wait until it has ended", r.folder(), err)
	}
	h := serve.New(generator{e: e}, serve.Options{Model: e.Name()})
	s, err := batches.Open(ctx, r.folder(), batches.Options{Answerer: h, Model: e.arithmetic()})
	if err != nil {
		return nil, err
	}
	b, err = r.follow(ctx, s, is, endpoint)
	if err == nil {
		err = r.fetch(ctx, s, b)
	}
	err = errors.Join(err, s.Close())
	if err == nil || fresh && errors.Is(err, ErrLines) {
		err = errors.Join(err, r.remove(lock))
	}
	return b, err
}

const lockName = "lock"

// remove deletes the folder of a run that is done.
func (r *BatchRun) remove(lock *os.File) error {
	list, err := os.ReadDir(r.folder())
	if err != nil {
		return err
	}
	for _, e := range list {
		if e.Name() != lockName {
			err = errors.Join(err, os.RemoveAll(filepath.Join(r.folder(), e.Name())))
		}
	}
	_ = lock.Close() // nothing was written; Windows deletes no file that is open
	return errors.Join(err, os.Remove(lock.Name()), os.Remove(r.folder()))
}

// check refuses what would destroy a file that is no earlier output.
func (r *BatchRun) check() error {
	in, err := os.Stat(r.Input)
	if err != nil {
		return err
	}
	if filepath.Clean(r.Output) == filepath.Clean(r.Errors) {
		return fmt.Errorf("%s: answers and lines that failed cannot be in one file: %w", r.Output, ErrOutput)
	}
	for _, path := range []string{r.Output, r.Errors} {
		out, err := os.Stat(path)
		switch {
		case errors.Is(err, os.ErrNotExist):
		case err != nil:
			return err
		case !out.Mode().IsRegular():
			return fmt.Errorf("%s is no regular file: %w", path, ErrOutput)
		case os.SameFile(in, out):
			return fmt.Errorf("%s is the input: %w", path, ErrOutput)
		}
	}
	return nil
}

// BatchEndpoint returns what the requests of a file are for: the URL of the first line that has one.
func BatchEndpoint(path string) (string, error) {
	_, endpoint, err := inspectLines(path)
	return endpoint, err
}

// inspectLines names a file by its content, and returns the URL of the first line that has one; that of chats where
// there is none, for the check of all lines says what is wrong with them.
func inspectLines(path string) (sum, endpoint string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", "", err
	}
	defer f.Close() //nolint:errcheck // it is only read
	h := sha256.New()
	in := bufio.NewReaderSize(io.TeeReader(f, h), batches.MaxLine)
	for endpoint == "" {
		text, err := in.ReadSlice('\n')
		var l struct {
			URL string `json:"url"`
		}
		text = bytes.TrimPrefix(text, []byte("\ufeff")) // as some editors begin a file
		if len(bytes.TrimSpace(text)) > 0 {
			_ = json.Unmarshal(text, &l) // it may be no JSON
			endpoint = l.URL
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return "", "", err
		}
	}
	if _, err := io.Copy(io.Discard, in); err != nil {
		return "", "", err
	}
	return hex.EncodeToString(h.Sum(nil)), cmp.Or(endpoint, "/v1/chat/completions"), nil
}

// follow begins the batch, or goes on with it, and returns when it has ended.
func (r *BatchRun) follow(ctx context.Context, s *batches.Store, is map[string]string, endpoint string) (*batches.Batch, error) {
	list, err := s.Batches(ctx, "", 1)
	if err != nil {
		return nil, err
	}
	var b *batches.Batch
	switch {
	case len(list) == 0:
		if b, err = r.begin(ctx, s, is, endpoint); err != nil {
			return nil, err
		}
	default:
		if err := r.same(list[0].Metadata, is); err != nil {
			return nil, err
		}
		b = list[0]
	}
	tick := time.NewTicker(progressTime)
	defer tick.Stop()
	for {
		if r.Progress != nil {
			r.Progress(b)
		}
		switch {
		case b.Status == batches.Failed:
			return b, ErrLines
		case b.Done():
			return b, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return b, ctx.Err()
		}
		if b, err = s.Batch(ctx, b.ID); err != nil {
			return nil, err
		}
	}
}

// same refuses to go on with a run that was over another input, or with a model that computes other bits.
func (r *BatchRun) same(was, is map[string]string) error {
	switch {
	case was["sha256"] != is["sha256"]:
		return fmt.Errorf("%s %w", r.folder(), ErrOtherInput)
	case was["model"] != is["model"]:
		return fmt.Errorf("%s, %.100q and not %.100q, %w", r.folder(), was["model"], is["model"], ErrOtherModel)
	case was["hash"] != is["hash"]:
		return fmt.Errorf("%s, %.100q with other weights, another profile, or another --kv or --state (%.12s, and now %.12s), %w",
			r.folder(), is["model"], was["hash"], is["hash"], ErrOtherModel)
	}
	return nil
}

// arithmetic names what decides the bits of answers: the weights with their profile, and how sequences are
// kept. Where the experts are computed does not.
func (e *Engine) arithmetic() string {
	h := e.sum()
	sum := sha256.Sum256(fmt.Appendf(h[:], "kv %v state %v", e.options.KV, e.options.State))
	return hex.EncodeToString(sum[:16])
}

func (r *BatchRun) begin(ctx context.Context, s *batches.Store, is map[string]string, endpoint string) (*batches.Batch, error) {
	in, err := os.Open(r.Input)
	if err != nil {
		return nil, err
	}
	defer in.Close() //nolint:errcheck // it is only read
	info, err := in.Stat()
	if err != nil {
		return nil, err
	}
	f, err := s.AddFile(ctx, filepath.Base(r.Input), "batch", in)
	if err != nil {
		return nil, err
	}
	// One input has one output, byte for byte, whenever it is computed.
	return s.Create(ctx, batches.Work{Input: f.ID, Endpoint: endpoint, Metadata: is, Stamp: info.ModTime()})
}

// fetch puts the files of a batch where they are wanted.
func (r *BatchRun) fetch(ctx context.Context, s *batches.Store, b *batches.Batch) error {
	if err := copyFile(ctx, s, b.Output, r.Output); err != nil {
		return err
	}
	if b.ErrorFile == "" { // nor is there one of an earlier run
		if err := os.Remove(r.Errors); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return nil
	}
	return copyFile(ctx, s, b.ErrorFile, r.Errors)
}

// copyFile writes a file of the store to a path, whole or not at all; an empty one where there is none.
func copyFile(ctx context.Context, s *batches.Store, id, path string) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".kvasir-*")
	if err != nil {
		return err
	}
	if id != "" {
		var f *os.File
		if f, err = s.Content(ctx, id); err == nil {
			_, err = io.Copy(tmp, f)
			err = errors.Join(err, f.Close())
		}
	}
	if err = errors.Join(err, tmp.Chmod(0o644), tmp.Sync(), tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		_ = os.Remove(tmp.Name()) // err says more
	}
	return err
}
