// Package batches is OpenAI's files and batch jobs: JSONL in, JSONL out.
//
//	POST   /v1/files                     multipart: file, purpose
//	GET    /v1/files, /v1/files/ID, /v1/files/ID/content
//	DELETE /v1/files/ID
//	POST   /v1/batches                   input_file_id, endpoint, completion_window, metadata
//	GET    /v1/batches, /v1/batches/ID
//	POST   /v1/batches/ID/cancel
//
// Files lie in a folder; what is known of them, the batches and their lines are in a SQLite database beside
// them, or in a PostgreSQL database that several nodes share as they share the folder. A batch is checked
// whole before anything is computed for it. Its lines go through the queue River in groups: a job is
// inserted in the transaction that records the batch, and the answer of a line is written in the one that
// counts it as done. What is killed goes on with the lines that have no answer yet, on this node or another,
// so each custom_id is answered exactly once. A job that runs twice does no harm: the first answer stands.
//
// Batches take turns, a group each. A batch is computed by nodes of the model that it was begun with.
//
// A batch ends when every line is done, when it is cancelled, or when its time is over; what is done by
// then is in its output.
package batches

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"kvasir/engine/serve"
)

// Limits, OpenAI's where it has them.
const (
	MaxBytes  = 200 << 20 // of a file
	MaxLines  = 50_000    // of a batch
	MaxLine   = 4 << 20   // bytes
	MaxID     = 512       // characters of a custom_id
	maxErrors = 100       // that are told of a file
	maxFiles  = 10_000
	maxOpen   = 1000   // batches that have not ended
	maxEnded  = 10_000 // older ones are forgotten
)

// groupLines is how many lines one job has. They are answered at the same time.
const groupLines = 32

// Window is the only completion window there is.
const Window = 24 * time.Hour

// Errors of this package; test with errors.Is.
var (
	// ErrNotFound: there is no such file or batch.
	ErrNotFound = errors.New("batches: not found")
	// ErrTooBig: a file has more bytes than MaxBytes, or there are too many files.
	ErrTooBig = errors.New("batches: too big")
	// ErrFull: so many batches have not ended. Try again later.
	ErrFull = errors.New("batches: too many batches have not ended; wait for some, or cancel them")
	// ErrInUse: a batch that has not ended needs the file.
	ErrInUse = errors.New("batches: file is in use")
	// ErrEnded: the batch has ended already.
	ErrEnded = errors.New("batches: batch has ended")
	// ErrStore: the folder is another's, or of a newer version.
	ErrStore = errors.New("batches: not a store of batches")
)

// Statuses of a batch.
const (
	Failed     = "failed" // its input is wrong, or gone
	InProgress = "in_progress"
	Finalizing = "finalizing"
	Cancelling = "cancelling"
	Completed  = "completed"
	Expired    = "expired"
	Cancelled  = "cancelled"
)

// File is a file of requests, or of answers.
type File struct {
	ID      string
	Purpose string
	Name    string
	Bytes   int64
	Created time.Time
}

// Batch is a job, as it stands.
type Batch struct {
	ID         string
	Input      string // file
	Endpoint   string
	Metadata   map[string]string
	Status     string
	Created    time.Time
	Expires    time.Time
	Ended      time.Time // zero: it has not
	Total      int       // lines
	Completed  int       // with status 200
	Failed     int       // with another
	Output     string    // file; empty: none
	ErrorFile  string    // file of the lines that failed; empty: none
	Validation []LineError
	Model      string // that computes it, as Options.Model has it

	stamp time.Time // that stands in its answers
	owner string    // API key; empty: none was asked for
}

// Done reports whether the batch has ended.
func (b *Batch) Done() bool { return !b.Ended.IsZero() }

// LineError is what is wrong with a line of the input.
type LineError struct {
	Line    int    `json:"line"` // from 1; 0: the file
	Code    string `json:"code"`
	Param   string `json:"param,omitempty"`
	Message string `json:"message"`
}

// Answerer computes lines. serve.Handler is one.
type Answerer interface {
	// Check returns what is wrong with a request, without computing anything.
	Check(path string, body []byte) *serve.Problem
	// Answer answers a request; status 0 means that ctx has ended. What it holds of the answer counts as
	// used until then: ctx ends when the answer is recorded. 429 means that there is no room now. OwnerOf(ctx)
	// is the key that has begun the batch.
	Answer(ctx context.Context, path string, body []byte, stamp serve.Stamp) (status int, answer []byte)
}

// line is one of an input file.
type line struct {
	ID     string          `json:"custom_id"`
	Method string          `json:"method"`
	URL    string          `json:"url"`
	Body   json.RawMessage `json:"body"`
}
