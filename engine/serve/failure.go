package serve

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"kvasir/engine/sample"
)

// failure is OpenAI's error object.
type failure struct {
	status  int
	Message string
	Kind    string
	Param   string        // empty: none
	Code    string        // empty: none
	retry   time.Duration // of a 429, and of whatever else is over after a while; 0: nothing is known
}

// errorBody is how it is written; what is not said is null.
type errorBody struct {
	Error struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    *string `json:"code"`
	} `json:"error"`
}

func (f *failure) body() (b errorBody) {
	b.Error.Message, b.Error.Type = f.Message, f.Kind
	if f.Param != "" {
		b.Error.Param = &f.Param
	}
	if f.Code != "" {
		b.Error.Code = &f.Code
	}
	return b
}

func refuse(w http.ResponseWriter, f *failure) {
	if f.retry > 0 || f.status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", retryAfter(f.retry))
	}
	answer(w, f.status, f.body())
}

// Refuse answers with OpenAI's error object about a request that is wrong, or, from 500 on, could not be
// answered. param may be empty.
func Refuse(w http.ResponseWriter, status int, param, message string) {
	f := invalid(status, param, "%s", message)
	if status == http.StatusTooManyRequests {
		f = busy(message)
	}
	if status >= http.StatusInternalServerError {
		f.Kind = "server_error"
	}
	refuse(w, f)
}

// busy is a request that may be sent again later.
func busy(message string) *failure {
	return &failure{
		status: http.StatusTooManyRequests, Kind: "rate_limit_error", Code: "rate_limit_exceeded", Message: message,
	}
}

// invalid is a request that is wrong in a parameter, or as a whole.
func invalid(status int, param, format string, args ...any) *failure {
	return &failure{status: status, Kind: "invalid_request_error", Param: param, Message: fmt.Sprintf(format, args...)}
}

// unsupported is a parameter that is right and that this server cannot follow.
func unsupported(param, format string, args ...any) *failure {
	f := invalid(http.StatusBadRequest, param, format, args...)
	f.Code = "unsupported_value"
	return f
}

func (h *Handler) noModel(name string) *failure {
	f := invalid(http.StatusNotFound, "model", "the model %.100q is not served here; %q is", name, h.o.Model)
	f.Code = "model_not_found"
	return f
}

// responseNames are what /v1/responses calls parameters that have other names elsewhere.
var responseNames = map[string]string{"messages": "input", "response_format": "text", "max_tokens": "max_output_tokens"}

// failed turns an error of the generator into what the client is told, or nil when that has gone.
func (h *Handler) failed(ctx context.Context, k kind, err error) *failure {
	var sampling *sample.ParamError
	var param *ParamError
	var full *BusyError
	switch {
	case ctx.Err() != nil:
		return nil
	case errors.As(err, &full):
		return h.full(full.Reason, full.Retry)
	case errors.Is(err, ErrBusy):
		return h.full("too many requests wait; send it again later", 0)
	case errors.As(err, &sampling):
		return invalid(http.StatusBadRequest, sampling.Param, "%s: %s", sampling.Param, sampling.Reason)
	case errors.As(err, &param):
		name := param.Param
		if other := responseNames[name]; k == responseText && other != "" {
			name = other
		}
		f := invalid(http.StatusBadRequest, name, "%s: %s", name, param.Error())
		f.Code = param.Code
		return f
	case errors.Is(err, ErrRequest):
		return invalid(http.StatusBadRequest, "", "%s", strings.TrimPrefix(err.Error(), ErrRequest.Error()+": "))
	}
	h.o.Log.Error("generation ended", "err", err)
	return &failure{status: http.StatusInternalServerError, Kind: "server_error", Message: err.Error()}
}
