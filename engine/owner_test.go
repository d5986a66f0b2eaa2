package engine_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"
	"time"

	"kvasir/engine"
	"kvasir/engine/access"
)

// upload sends a file for a batch and returns its id.
func (s *servedNode) upload(key, text string) (id string) {
	s.t.Helper()
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	err := form.WriteField("purpose", "batch")
	part, perr := form.CreateFormFile("file", "in.jsonl")
	if err = errors.Join(err, perr); err == nil {
		_, err = io.WriteString(part, text)
	}
	if err := errors.Join(err, form.Close()); err != nil {
		s.t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.url+"/v1/files", &body)
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Content-Type", form.FormDataContentType())
	r.Header.Set("Authorization", "Bearer "+key)
	res, err := s.c.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close() //nolint:errcheck // it is only read
	var f struct{ ID string }
	if err := json.NewDecoder(res.Body).Decode(&f); err != nil || f.ID == "" {
		s.t.Fatalf("status %d, %v", res.StatusCode, err)
	}
	return f.ID
}

// TestLinesOfBatchesAreChargedToTheirKey has a batch use up what its key may have in a minute, and more.
func TestLinesOfBatchesAreChargedToTheirKey(t *testing.T) {
	home := engine.Home(t.TempDir())
	limits := access.Limits{Tokens: 20, Sequences: 1, Requests: 1 << 20}
	key := createKey(t, home, access.Key{Scopes: []access.Scope{access.Batch, access.Chat}, Limits: limits})
	s := newServedNode(t, home, "127.0.0.1:0", engine.DoorOptions{Keys: true})
	const line = `{"custom_id": "%d", "method": "POST", "url": "/v1/responses", "body": {"input": "a", "max_output_tokens": 64}}`
	file := s.upload(key, fmt.Sprintf(line+"\n"+line+"\n", 1, 2))
	status, text := s.ask("POST", "/v1/batches", key, `{"input_file_id": "`+file+`", "endpoint": "/v1/responses", "completion_window": "24h"}`)
	var batch struct {
		ID     string
		Status string
		Counts struct{ Completed int } `json:"request_counts"`
	}
	if err := json.Unmarshal([]byte(text), &batch); err != nil || status != http.StatusOK {
		t.Fatalf("status %d, %v: %s", status, err, text)
	}
	for limit := time.Now().Add(3 * time.Minute); batch.Counts.Completed == 0; {
		_, text = s.ask("GET", "/v1/batches/"+batch.ID, key, "")
		if err := json.Unmarshal([]byte(text), &batch); err != nil || time.Now().After(limit) {
			t.Fatalf("%v: %s", err, text)
		}
		if strings.Contains(text, "tokens a minute") {
			break
		}
	}
	if status, text = s.ask("POST", "/v1/completions", key, `{"prompt": "a"}`); status != http.StatusTooManyRequests || !strings.Contains(text, "tokens a minute") {
		t.Errorf("status %d, want 429: %s", status, text)
	}
}

func TestFilesAndBatchesBelongToTheirKey(t *testing.T) {
	home := engine.Home(t.TempDir())
	a := createKey(t, home, access.Key{Name: "a", Scopes: []access.Scope{access.Batch}})
	b := createKey(t, home, access.Key{Name: "b", Scopes: []access.Scope{access.Batch}})
	admin := createKey(t, home, access.Key{Name: "admin", Scopes: []access.Scope{access.Admin}})
	s := newServedNode(t, home, "127.0.0.1:0", engine.DoorOptions{Keys: true})
	file := s.upload(a, `{"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {"prompt": "a", "max_tokens": 2}}`+"\n")
	order := `{"input_file_id": "` + file + `", "endpoint": "/v1/completions", "completion_window": "24h"}`
	if status, text := s.ask("POST", "/v1/batches", b, order); status != http.StatusNotFound {
		t.Errorf("another begins a batch over it: status %d: %s", status, text)
	}
	var batch struct {
		ID, Status string
		Output     string `json:"output_file_id"`
	}
	status, text := s.ask("POST", "/v1/batches", a, order)
	if err := json.Unmarshal([]byte(text), &batch); err != nil || status != http.StatusOK {
		t.Fatalf("status %d, %v: %s", status, err, text)
	}
	for limit := time.Now().Add(3 * time.Minute); batch.Status != "completed"; {
		_, text = s.ask("GET", "/v1/batches/"+batch.ID, a, "")
		if err := json.Unmarshal([]byte(text), &batch); err != nil || time.Now().After(limit) {
			t.Fatalf("%v: %s", err, text)
		}
	}
	for _, path := range []string{"/v1/files/" + file, "/v1/files/" + file + "/content", "/v1/files/" + batch.Output + "/content", "/v1/batches/" + batch.ID} {
		for key, want := range map[string]int{a: http.StatusOK, admin: http.StatusOK, b: http.StatusNotFound} {
			if status, text := s.ask("GET", path, key, ""); status != want {
				t.Errorf("GET %s: status %d, want %d: %s", path, status, want, text)
			}
		}
	}
	for _, path := range []string{"/v1/files", "/v1/batches"} {
		for key, want := range map[string]bool{a: true, admin: true, b: false} {
			if _, text := s.ask("GET", path, key, ""); strings.Contains(text, `"id":`) != want {
				t.Errorf("GET %s, want something of it %v: %s", path, want, text)
			}
		}
	}
	for method, path := range map[string]string{"DELETE": "/v1/files/" + file, "POST": "/v1/batches/" + batch.ID + "/cancel"} {
		if status, text := s.ask(method, path, b, ""); status != http.StatusNotFound {
			t.Errorf("another's %s %s: status %d: %s", method, path, status, text)
		}
	}
	if status, text := s.ask("DELETE", "/v1/files/"+file, a, ""); status != http.StatusOK {
		t.Errorf("one's own: status %d: %s", status, text)
	}
}

// TestSecondServerOfAHomeSaysWhereBatchesAre has two servers of one home folder: its batch jobs are the first one's.
func TestSecondServerOfAHomeSaysWhereBatchesAre(t *testing.T) {
	home := engine.Home(t.TempDir())
	first := newServedNode(t, home, "127.0.0.1:0", engine.DoorOptions{})
	second := newServedNode(t, home, "127.0.0.1:0", engine.DoorOptions{})
	if status, text := first.ask("GET", "/v1/batches", "", ""); status != http.StatusOK {
		t.Errorf("status %d: %s", status, text)
	}
	for _, path := range []string{"/v1/batches", "/v1/files", "/v1/batches/x/cancel"} {
		if status, text := second.ask("GET", path, "", ""); status != http.StatusServiceUnavailable || !strings.Contains(text, "another process") {
			t.Errorf("%s of the second: status %d: %s", path, status, text)
		}
	}
	if status, text := second.ask("POST", "/v1/completions", "", `{"prompt":"a","max_tokens":1}`); status != http.StatusOK {
		t.Errorf("the second has status %d: %s", status, text)
	}
}
