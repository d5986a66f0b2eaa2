package serve

import (
	"math"
	"net/http"
	"strconv"
	"time"
)

// Denial is why a request is not answered, in OpenAI's words.
type Denial struct {
	Status  int
	Kind    string // such as invalid_request_error
	Code    string // such as invalid_api_key; may be empty
	Message string
	Retry   time.Duration // it may be sent again after so long; 0: nothing is said
}

// Deny answers with OpenAI's error object.
func Deny(w http.ResponseWriter, d Denial) {
	refuse(w, &failure{status: d.Status, Message: d.Message, Kind: d.Kind, Code: d.Code, retry: d.Retry})
}

// BusyError is an error of Generate for which the request may be sent again later: it is an ErrBusy that says
// why, and when.
type BusyError struct {
	Reason string
	Retry  time.Duration // 0: Options.Retry knows
}

// Error returns the reason.
func (e *BusyError) Error() string { return e.Reason }

// Is makes it an ErrBusy.
func (e *BusyError) Is(target error) bool { return target == ErrBusy }

// full is a request that finds no place.
func (h *Handler) full(message string, retry time.Duration) *failure {
	f := busy(message)
	if f.retry = retry; retry == 0 && h.o.Retry != nil {
		f.retry = h.o.Retry()
	}
	return f
}

// retryAfter is a time in whole seconds, as the header has it, and never too short.
func retryAfter(d time.Duration) string {
	return strconv.FormatInt(int64(math.Ceil(max(d, time.Second).Seconds())), 10)
}

// Wrap puts something before all answers, such as one who asks for keys. It is to be called before Run.
func (h *Handler) Wrap(around func(http.Handler) http.Handler) { h.front = around(h) }
