package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"kvasir/engine"
	"kvasir/engine/batches"
)

// batchCmd are the commands of batch jobs.
type batchCmd struct {
	Run    batchRunCmd    `cmd:"" help:"Answer a file of requests, without a server."`
	Submit batchSubmitCmd `cmd:"" help:"Hand a file of requests to a server."`
	Status batchStatusCmd `cmd:"" help:"Print how batches stand."`
	Watch  batchWatchCmd  `cmd:"" help:"Follow a batch until it has ended."`
	Fetch  batchFetchCmd  `cmd:"" help:"Write the answers of a batch to a file."`
	Cancel batchCancelCmd `cmd:"" help:"End a batch; what is done stays."`
}

// Help is printed by kvasir batch --help.
func (batchCmd) Help() string {
	return `A file has one request a line, as OpenAI's batches have them:

    {"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {"prompt": "Once"}}

The whole file is checked before anything is computed. Answers come in the order of the lines, each with its custom_id. What was interrupted goes on with the lines that have no answer yet.

Examples:

    kvasir batch run questions.jsonl -o answers.jsonl
    kvasir batch submit questions.jsonl
    kvasir batch watch questions.jsonl
    kvasir batch fetch questions.jsonl -o answers.jsonl`
}

type batchRunCmd struct {
	Input  string `arg:"" help:"File of requests, one a line." placeholder:"FILE"`
	Output string `short:"o" required:"" help:"File for the answers." placeholder:"FILE"`
	Errors string `help:"File for the lines that failed (default: --output with .errors behind)." placeholder:"FILE"`
	generatorFlags
	jsonFlag
}

// batchState is what the commands print of a batch with --json: OpenAI's object, as far as it goes.
type batchState struct {
	ID     string `json:"id"`
	Status string `json:"status"`
	Counts struct {
		Total     int `json:"total"`
		Completed int `json:"completed"`
		Failed    int `json:"failed"`
	} `json:"request_counts"`
	Input     string  `json:"input_file_id,omitempty"`
	Created   int64   `json:"created_at"`
	Output    *string `json:"output_file_id,omitempty"`
	ErrorFile *string `json:"error_file_id,omitempty"`
	Errors    *struct {
		Data []batches.LineError `json:"data"`
	} `json:"errors,omitempty"`
}

// done reports whether the batch has ended.
func (b *batchState) done() bool {
	return b.Status != batches.InProgress && b.Status != batches.Finalizing && b.Status != batches.Cancelling
}

// Run answers a file here.
func (c *batchRunCmd) Run(ctx context.Context, a *app) error {
	if c.Errors == "" {
		c.Errors = c.Output + ".errors"
	}
	b, err := c.open(ctx, a)
	if err != nil {
		return err
	}
	defer b.Close()
	p := newBatchProgress(a)
	job, err := b.Engine().RunBatch(ctx, engine.BatchRun{Input: c.Input, Output: c.Output, Errors: c.Errors, Progress: func(b *batches.Batch) {
		p.show(b.Total, b.Completed, b.Failed)
	}})
	p.end()
	switch {
	case errors.Is(err, engine.ErrLines):
		return wrongLines(c.Input, job.Validation)
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("%w; the same command goes on where this one ended", errInterrupted)
	case err != nil:
		return err
	}
	if c.JSON {
		var s batchState
		s.ID, s.Status = job.ID, job.Status
		s.Counts.Total, s.Counts.Completed, s.Counts.Failed = job.Total, job.Completed, job.Failed
		return a.stdout.printJSON(s)
	}
	a.stdout.printf("%s answered, in %s\n", linesText(job.Completed), c.Output)
	if job.Failed > 0 {
		a.stdout.printf("%s failed, in %s\n", linesText(job.Failed), c.Errors)
	}
	return nil
}

// wrongLines says what is wrong with a file.
func wrongLines(name string, list []batches.LineError) error {
	return fmt.Errorf("%s: %w: %s", name, engine.ErrLines, wrongText(list))
}

// wrongText is what is wrong, on one line: the first things in full, and how many more there are.
func wrongText(list []batches.LineError) string {
	const few = 3
	var parts []string
	for i, l := range list {
		if i == few {
			parts = append(parts, fmt.Sprintf("and %d more", len(list)-few))
			break
		}
		if l.Line == 0 {
			parts = append(parts, l.Message)
		} else {
			parts = append(parts, fmt.Sprintf("line %d: %s", l.Line, l.Message))
		}
	}
	return strings.Join(parts, "; ")
}

// serverFlags say where batches are served.
type serverFlags struct {
	Server string `help:"Address of the server (default ${default})." placeholder:"URL" default:"http://127.0.0.1:8080"`
	apiKeyFlag
	jsonFlag
}

// apiKeyFlag is for commands that ask a server which may want a key.
type apiKeyFlag struct {
	APIKey apiKey `name:"api-key" help:"API key to send, where the server asks for one." placeholder:"KEY"`
}

// apiKey is the text of an API key, which is nobody else's to see.
type apiKey string

// shown is as much of it as names it.
func (k apiKey) shown() string {
	return string(k[:min(len(k), len("kv_")+3)]) + "…"
}

// send puts the key, if there is one, into a request.
func (f *apiKeyFlag) send(r *http.Request) {
	if f.APIKey != "" {
		r.Header.Set("Authorization", "Bearer "+string(f.APIKey))
	}
}

// call asks the server and decodes its answer into out; nil leaves the answer's body to the caller.
func (f *serverFlags) call(ctx context.Context, method, path, kind string, body io.Reader, out any) (io.ReadCloser, error) {
	u, err := url.Parse(f.Server)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, usagef("--server: want http://HOST:PORT, got %q", f.Server)
	}
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(strings.TrimSuffix(u.String(), "/"), "/v1")+"/v1/"+path, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", kind)
	f.send(req)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("no server answers at %s: is kvasir serve running? (%w)", f.Server, err)
	}
	if res.StatusCode == http.StatusOK && out == nil {
		return res.Body, nil
	}
	text, err := io.ReadAll(io.LimitReader(res.Body, 16<<20))
	if err = errors.Join(err, res.Body.Close()); err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		var e struct {
			Error struct{ Message string }
		}
		if json.Unmarshal(text, &e) != nil || e.Error.Message == "" {
			e.Error.Message = res.Status
		}
		return nil, fmt.Errorf("%s answers: %s", f.Server, e.Error.Message)
	}
	if err := json.Unmarshal(text, out); err != nil {
		return nil, fmt.Errorf("%s does not answer as a server of batches does: %w", f.Server, err)
	}
	return nil, nil
}

// get asks how a batch stands, by its ID or by its file.
func (f *serverFlags) get(ctx context.Context, given string) (b batchState, err error) {
	id, err := f.find(ctx, given)
	if err != nil {
		return b, err
	}
	_, err = f.call(ctx, http.MethodGet, "batches/"+url.PathEscape(id), "", nil, &b)
	return b, err
}

// print prints a batch as it stands.
func (f *serverFlags) print(a *app, b *batchState) error {
	if f.JSON {
		return a.stdout.printJSON(b)
	}
	a.stdout.printf("%s  %-12s %d of %d lines, %d failed\n", b.ID, b.Status, b.Counts.Completed+b.Counts.Failed, b.Counts.Total, b.Counts.Failed)
	if b.Errors != nil && len(b.Errors.Data) > 0 {
		a.stdout.printf("    %s\n", clean(wrongText(b.Errors.Data)))
	}
	return nil
}

type batchSubmitCmd struct {
	Input    string `arg:"" help:"File of requests, one a line." placeholder:"FILE"`
	Endpoint string `help:"What the requests are for (default: the url of the first line that has one)." placeholder:"PATH" default:"" enum:",/v1/chat/completions,/v1/completions,/v1/responses"`
	serverFlags
}

// Run uploads a file and begins a batch.
func (c *batchSubmitCmd) Run(ctx context.Context, a *app) error {
	if c.Endpoint == "" {
		var err error
		if c.Endpoint, err = engine.BatchEndpoint(c.Input); err != nil {
			return err
		}
	}
	f, err := os.Open(c.Input)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // it is only read
	r, w := io.Pipe()
	form := multipart.NewWriter(w)
	go func() { // ends with the file, or with the request
		err := form.WriteField("purpose", "batch")
		if err == nil {
			var part io.Writer
			if part, err = form.CreateFormFile("file", filepath.Base(c.Input)); err == nil {
				_, err = io.Copy(part, f)
			}
		}
		w.CloseWithError(errors.Join(err, form.Close()))
	}()
	var file struct {
		ID string `json:"id"`
	}
	_, err = c.call(ctx, http.MethodPost, "files", form.FormDataContentType(), r, &file)
	_ = r.Close() // what was not read of it is not needed
	if err != nil {
		return err
	}
	body, err := json.Marshal(map[string]string{"input_file_id": file.ID, "endpoint": c.Endpoint, "completion_window": "24h"})
	if err != nil {
		return err
	}
	var b batchState
	if _, err := c.call(ctx, http.MethodPost, "batches", "application/json", bytes.NewReader(body), &b); err != nil {
		return err
	}
	if b.Status == batches.Failed && b.Errors != nil {
		return wrongLines(c.Input, b.Errors.Data)
	}
	return c.print(a, &b)
}

type batchStatusCmd struct {
	ID string `arg:"" optional:"" help:"The batch, by its ID or by the file it was made of; without it, the newest ones." placeholder:"BATCH"`
	serverFlags
}

// Run prints how batches stand.
func (c *batchStatusCmd) Run(ctx context.Context, a *app) error {
	if c.ID != "" {
		b, err := c.get(ctx, c.ID)
		if err != nil {
			return err
		}
		return c.print(a, &b)
	}
	var list struct {
		Data []batchState `json:"data"`
	}
	if _, err := c.call(ctx, http.MethodGet, "batches", "", nil, &list); err != nil {
		return err
	}
	if c.JSON {
		return a.stdout.printJSON(list.Data)
	}
	if len(list.Data) == 0 {
		a.stdout.printf("There are no batches.\n")
	}
	for i := range list.Data {
		if err := c.print(a, &list.Data[i]); err != nil {
			return err
		}
	}
	return nil
}

type batchWatchCmd struct {
	ID string `arg:"" help:"The batch, by its ID or by the file it was made of." placeholder:"BATCH"`
	serverFlags
}

// Run follows a batch.
func (c *batchWatchCmd) Run(ctx context.Context, a *app) error {
	p := newBatchProgress(a)
	defer p.end()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		b, err := c.get(ctx, c.ID)
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("%w; the batch goes on, and the same command follows it again", errInterrupted)
		case err != nil:
			return err
		}
		c.ID = b.ID // also where another is made of the same file meanwhile
		p.show(b.Counts.Total, b.Counts.Completed, b.Counts.Failed)
		if b.done() {
			p.end()
			return c.print(a, &b)
		}
		select {
		case <-tick.C:
		case <-ctx.Done(): // the next look tells
		}
	}
}

type batchFetchCmd struct {
	ID     string `arg:"" help:"The batch, by its ID or by the file it was made of." placeholder:"BATCH"`
	Output string `short:"o" help:"File for the answers. Default: standard output." placeholder:"FILE"`
	Failed bool   `help:"The lines that failed, in the place of the answers."`
	serverFlags
}

// Run writes the answers of a batch.
func (c *batchFetchCmd) Run(ctx context.Context, a *app) error {
	b, err := c.get(ctx, c.ID)
	if err != nil {
		return err
	}
	file, what := b.Output, "answers"
	if c.Failed {
		file, what = b.ErrorFile, "lines that failed"
	}
	switch {
	case !b.done():
		return fmt.Errorf("%s is %s: wait for it with kvasir batch watch %s", b.ID, b.Status, b.ID)
	case file == nil && b.Errors != nil && len(b.Errors.Data) > 0:
		return wrongLines(b.ID, b.Errors.Data)
	case file == nil:
		return fmt.Errorf("%s has no %s", b.ID, what)
	}
	body, err := c.call(ctx, http.MethodGet, "files/"+url.PathEscape(*file)+"/content", "", nil, nil)
	if err != nil {
		return err
	}
	defer body.Close() //nolint:errcheck // it is only read
	if c.Output == "" {
		_, err = io.Copy(a.stdout, body)
		return err
	}
	out, err := os.Create(c.Output)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, body)
	return errors.Join(err, out.Close())
}

type batchCancelCmd struct {
	ID string `arg:"" help:"The batch, by its ID or by the file it was made of." placeholder:"BATCH"`
	serverFlags
}

// Run ends a batch.
func (c *batchCancelCmd) Run(ctx context.Context, a *app) error {
	id, err := c.find(ctx, c.ID)
	if err != nil {
		return err
	}
	var b batchState
	if _, err := c.call(ctx, http.MethodPost, "batches/"+url.PathEscape(id)+"/cancel", "application/json", nil, &b); err != nil {
		return err
	}
	return c.print(a, &b)
}
