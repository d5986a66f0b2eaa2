package batches

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

func TestOpenAIsClientUploadsAndFetches(t *testing.T) { kinds(t, testOpenAIsClientUploadsAndFetches) }

func testOpenAIsClientUploadsAndFetches(t *testing.T, kind string) {
	s := openStore(t, folder(t, kind), newEcho(), fixed)
	defer closeStore(t, s)
	server := httptest.NewServer(NewHandler(s))
	defer server.Close()
	c := openai.NewClient(option.WithBaseURL(server.URL+"/v1"), option.WithAPIKey("none"), option.WithMaxRetries(0),
		option.WithHTTPClient(server.Client()))
	ctx := t.Context()
	f, err := c.Files.New(ctx, openai.FileNewParams{
		File: openai.File(strings.NewReader(input(40, numbered)), "in.jsonl", "application/jsonl"), Purpose: openai.FilePurposeBatch,
	})
	if err != nil || f.Filename != "in.jsonl" || f.Purpose != "batch" || f.Bytes == 0 {
		t.Fatalf("%v: %+v", err, f)
	}
	b, err := c.Batches.New(ctx, openai.BatchNewParams{
		InputFileID: f.ID, Endpoint: openai.BatchNewParamsEndpointV1Completions, CompletionWindow: openai.BatchNewParamsCompletionWindow24h,
	})
	if err != nil || b.Status != openai.BatchStatusInProgress || b.RequestCounts.Total != 40 {
		t.Fatalf("%v: %+v", err, b)
	}
	wait(t, s, b.ID)
	if b, err = c.Batches.Get(ctx, b.ID); err != nil || b.Status != openai.BatchStatusCompleted || b.RequestCounts.Completed != 40 || b.CompletedAt == 0 {
		t.Fatalf("%v: %+v", err, b)
	}
	res, err := c.Files.Content(ctx, b.OutputFileID)
	if err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(res.Body)
	if err := errors.Join(err, res.Body.Close()); err != nil || bytes.Count(out, []byte("\n")) != 40 || res.ContentLength != int64(len(out)) {
		t.Errorf("%v: of %d bytes %s", err, res.ContentLength, out)
	}
	list, err := c.Batches.List(ctx, openai.BatchListParams{Limit: openai.Int(1)})
	if err != nil || len(list.Data) != 1 || list.Data[0].ID != b.ID {
		t.Errorf("%v: %+v", err, list)
	}
	if _, err := c.Batches.Cancel(ctx, b.ID); err == nil {
		t.Error("a batch that has ended was cancelled")
	}
	files, err := c.Files.List(ctx, openai.FileListParams{})
	if err != nil || len(files.Data) != 2 {
		t.Errorf("%v: %+v", err, files)
	}
	if d, err := c.Files.Delete(ctx, f.ID); err != nil || !d.Deleted {
		t.Errorf("%v: %+v", err, d)
	}
	var api *openai.Error
	if _, err := c.Files.Get(ctx, f.ID); !errors.As(err, &api) || api.StatusCode != http.StatusNotFound {
		t.Errorf("%v, want a 404", err)
	}
}

// form is a multipart body with these fields, "file" as a file.
func form(t *testing.T, fields ...string) (body, kind string) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for i := 0; i < len(fields); i += 2 {
		var to io.Writer
		var err error
		if fields[i] == "file" {
			to, err = w.CreateFormFile("file", "x.jsonl")
		} else {
			to, err = w.CreateFormField(fields[i])
		}
		if err == nil {
			_, err = io.WriteString(to, fields[i+1])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String(), w.FormDataContentType()
}

// pairs are n of metadata.
func pairs(n int) string {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprintf(`"%d":"x"`, i))
	}
	return strings.Join(list, ",")
}

// TestStrangeNamesAreKept has names of files, and a custom_id, that the two databases take differently.
func TestStrangeNamesAreKept(t *testing.T) { kinds(t, testStrangeNamesAreKept) }

func testStrangeNamesAreKept(t *testing.T, kind string) {
	s := openStore(t, folder(t, kind), newEcho(), fixed)
	defer closeStore(t, s)
	h := NewHandler(s)
	for disposition, want := range map[string]string{
		"filename=\"a\xffb\"":             "a\ufffdb",
		"filename*=UTF-8''%e2%82%ac%00.x": "\u20ac\ufffd.x",
		`filename="../../etc/passwd"`:     "passwd",
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/files", strings.NewReader(
			"--x\r\nContent-Disposition: form-data; name=purpose\r\n\r\nbatch\r\n"+
				"--x\r\nContent-Disposition: form-data; name=file; "+disposition+"\r\n\r\n{}\r\n--x--\r\n"))
		r.Header.Set("Content-Type", "multipart/form-data; boundary=x")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		var f fileObject
		if err := json.Unmarshal(w.Body.Bytes(), &f); err != nil || w.Code != http.StatusOK || f.Name != want {
			t.Errorf("%s: %v, status %d, %s; want %q", disposition, err, w.Code, w.Body, want)
		}
	}
	for _, id := range []string{`a\u0000b`, `\ud800`} {
		b := create(t, s, `{"custom_id":"`+id+`","method":"POST","url":"/v1/completions","body":{"prompt":"x"}}`)
		if b.Status != Failed || len(b.Validation) != 1 || b.Validation[0].Code != "invalid_custom_id" {
			t.Errorf("custom_id %s: %+v", id, b)
		}
	}
	b := wait(t, s, create(t, s, `{"custom_id":"\u0001\ud83d\ude00","method":"POST","url":"/v1/completions","body":{"prompt":"x"}}`).ID)
	if b.Completed != 1 || !strings.Contains(text(t, s, b.Output), `"custom_id":"\u0001😀"`) {
		t.Errorf("%+v: %s", b, text(t, s, b.Output))
	}
}

func TestFilesAreListedInPages(t *testing.T) {
	clock := at
	s := openStore(t, folder(t, "sqlite"), newEcho(), func() time.Time { clock = clock.Add(time.Second); return clock })
	defer closeStore(t, s)
	for i := range 5 {
		purpose := "batch"
		if i == 3 {
			purpose = "batch_output"
		}
		if _, err := s.AddFile(t.Context(), strconv.Itoa(i), purpose, strings.NewReader("x")); err != nil {
			t.Fatal(err)
		}
	}
	server := httptest.NewServer(NewHandler(s))
	defer server.Close()
	c := openai.NewClient(option.WithBaseURL(server.URL+"/v1"), option.WithAPIKey("none"), option.WithMaxRetries(0),
		option.WithHTTPClient(server.Client()))
	for _, q := range []struct {
		params openai.FileListParams
		want   string
	}{
		{openai.FileListParams{}, "43210"},
		{openai.FileListParams{Limit: openai.Int(2)}, "43210"},
		{openai.FileListParams{Limit: openai.Int(1), Order: openai.FileListParamsOrderAsc}, "01234"},
		{openai.FileListParams{Limit: openai.Int(1), Purpose: openai.String("batch")}, "4210"},
		{openai.FileListParams{Purpose: openai.String("batch_output")}, "3"},
	} {
		got := ""
		list := c.Files.ListAutoPaging(t.Context(), q.params)
		for list.Next() {
			got += list.Current().Filename
		}
		if list.Err() != nil || got != q.want {
			t.Errorf("%+v: %q, %v; want %q", q.params, got, list.Err(), q.want)
		}
	}
}

// TestLongFileIsRefusedByItsHead has a client that says how much will come.
func TestLongFileIsRefusedByItsHead(t *testing.T) {
	s := openStore(t, folder(t, "sqlite"), newEcho(), fixed)
	defer closeStore(t, s)
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/files", iotest.ErrReader(errors.New("it was read")))
	r.Header.Set("Content-Type", "multipart/form-data; boundary=x")
	r.ContentLength = 2 * MaxBytes
	w := httptest.NewRecorder()
	NewHandler(s).ServeHTTP(w, r)
	if w.Code != http.StatusRequestEntityTooLarge || !strings.Contains(w.Body.String(), `"file: more than 209715200 bytes"`) {
		t.Errorf("status %d, %s", w.Code, w.Body)
	}
}

// deadline notes those that are set.
type deadline struct {
	httptest.ResponseRecorder
	last time.Time
}

func (d *deadline) SetReadDeadline(at time.Time) error {
	d.last = at
	return nil
}

// TestUploadHasToGoOn sends a byte now and then, and then as much as it takes.
func TestUploadHasToGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &deadline{ResponseRecorder: *httptest.NewRecorder()}
		b := newBody(strings.NewReader(strings.Repeat("x", 1<<20)), d)
		left := func(n int) time.Duration {
			if _, err := b.Read(make([]byte, n)); err != nil {
				t.Fatal(err)
			}
			return time.Until(d.last)
		}
		if got := left(1); got != partTime {
			t.Errorf("%v for the first byte, want %v", got, partTime)
		}
		time.Sleep(partTime - time.Second)
		if got := left(1); got > 2*time.Second {
			t.Errorf("%v more after one byte, want about a second", got)
		}
		left(1 << 19)
		if got := left(1); got != partTime {
			t.Errorf("%v after half a MiB, want %v", got, partTime)
		}
	})
}

func TestBadRequestsAboutBatchesAreNamed(t *testing.T) { kinds(t, testBadRequestsAboutBatchesAreNamed) }

func testBadRequestsAboutBatchesAreNamed(t *testing.T, kind string) {
	s := openStore(t, folder(t, kind), newEcho(), fixed)
	defer closeStore(t, s)
	h := NewHandler(s)
	noPurpose, kind1 := form(t, "file", "x")
	noFile, kind2 := form(t, "purpose", "batch")
	otherPurpose, kind3 := form(t, "file", "x", "purpose", "fine-tune")
	twoFiles, kind4 := form(t, "file", "x", "file", "y")
	for _, c := range []struct {
		name, method, path, kind, body string
		status                         int
		want                           string
	}{
		{"no form", "POST", "/v1/files", "application/json", `{}`, 400, "multipart"},
		{"no boundary", "POST", "/v1/files", "multipart/form-data", ``, 400, "multipart"},
		{"no purpose", "POST", "/v1/files", kind1, noPurpose, 400, `"param":"purpose"`},
		{"no file", "POST", "/v1/files", kind2, noFile, 400, `"param":"file"`},
		{"other purpose", "POST", "/v1/files", kind3, otherPurpose, 400, `"param":"purpose"`},
		{"two files", "POST", "/v1/files", kind4, twoFiles, 400, "one at a time"},
		{"half a form", "POST", "/v1/files", kind1, noPurpose[:len(noPurpose)-20], 400, "ends in the middle"},
		{"not JSON", "POST", "/v1/batches", "", `{`, 400, "JSON"},
		{"endpoint", "POST", "/v1/batches", "", `{"input_file_id":"x","endpoint":"/v1/embeddings","completion_window":"24h"}`, 400, `"param":"endpoint"`},
		{"window", "POST", "/v1/batches", "", `{"input_file_id":"x","endpoint":"/v1/completions","completion_window":"1h"}`, 400, `"param":"completion_window"`},
		{"metadata", "POST", "/v1/batches", "", `{"input_file_id":"x","endpoint":"/v1/completions","completion_window":"24h","metadata":{"a":"` +
			strings.Repeat("x", 513) + `"}}`, 400, `"param":"metadata"`},
		{"long name", "POST", "/v1/files", kind1, strings.Replace(noPurpose, "x.jsonl", strings.Repeat("x", 1001), 1), 400, "its name"},
		{"file", "POST", "/v1/batches", "", `{"input_file_id":"../x","endpoint":"/v1/completions","completion_window":"24h"}`, 404, "not found"},
		{"batch", "GET", "/v1/batches/nothing", "", "", 404, "not found"},
		{"cancel", "POST", "/v1/batches/nothing/cancel", "", "", 404, "not found"},
		{"content", "GET", "/v1/files/nothing/content", "", "", 404, "not found"},
		{"limit", "GET", "/v1/batches?limit=0", "", "", 400, `"param":"limit"`},
		{"method", "PUT", "/v1/files", "", "", 405, "not answered here"},
		{"method of one", "POST", "/v1/batches/nothing", "", "", 405, "not answered here"},
		{"path", "GET", "/v1/batches/a/b/c", "", "", 404, "not answered here"},
		{"JSON that is not", "POST", "/v1/batches", "", `{"endpoint":x}`, 400, "at byte 13"},
		{"list", "POST", "/v1/batches", "", `[]`, 400, "not a JSON object"},
		{"packed", "POST", "/v1/batches", "", "\x1f\x8b", 400, "UTF-8"},
		{"input in numbers", "POST", "/v1/batches", "", `{"input_file_id":5}`, 400, `"param":"input_file_id"`},
		{"no input", "POST", "/v1/batches", "", `{"endpoint":"/v1/completions","completion_window":"24h"}`, 400, `"param":"input_file_id"`},
		{"unknown input", "POST", "/v1/batches", "", `{"input_file_id":"x","endpoint":"/v1/completions","completion_window":"24h"}`, 404, `"param":"input_file_id"`},
		{"window in numbers", "POST", "/v1/batches", "", `{"input_file_id":"x","endpoint":"/v1/completions","completion_window":24}`, 400, `"param":"completion_window"`},
		{"metadata in numbers", "POST", "/v1/batches", "", `{"input_file_id":"x","endpoint":"/v1/completions","completion_window":"24h","metadata":{"a":5}}`, 400, `"param":"metadata"`},
		{"metadata of nothing", "POST", "/v1/batches", "", `{"input_file_id":"x","endpoint":"/v1/completions","completion_window":"24h","metadata":{"a":null}}`, 400, `"param":"metadata"`},
		{"much metadata", "POST", "/v1/batches", "", `{"input_file_id":"x","endpoint":"/v1/completions","completion_window":"24h","metadata":{` + pairs(17) + `}}`, 400, `"param":"metadata"`},
		{"NUL in a name", "POST", "/v1/files", kind1, strings.Replace(noPurpose, "x.jsonl", "x\x00.jsonl", 1), 400, "the form"},
		{"head that is none", "POST", "/v1/files", kind1, strings.Replace(noPurpose, "Content-Disposition:", "Content-Disposition", 1), 400, "the form"},
		{"NUL", "GET", "/v1/files/%00", "", "", 404, "not found"},
		{"not UTF-8", "GET", "/v1/batches/%ff", "", "", 404, "not found"},
		{"NUL to cancel", "POST", "/v1/batches/%00/cancel", "", "", 404, "not found"},
		{"NUL to delete", "DELETE", "/v1/files/%00", "", "", 404, "not found"},
		{"batches after none", "GET", "/v1/batches?after=nothing", "", "", 404, `"param":"after"`},
		{"batches after NUL", "GET", "/v1/batches?after=%00", "", "", 404, `"param":"after"`},
		{"files after none", "GET", "/v1/files?after=nothing", "", "", 404, `"param":"after"`},
		{"limit of files", "GET", "/v1/files?limit=x", "", "", 400, `"param":"limit"`},
		{"order of files", "GET", "/v1/files?order=up", "", "", 400, `"param":"order"`},
		{"path out of the folder", "GET", "/v1/files/..%2f..%2fetc%2fpasswd/content", "", "", 404, "not found"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := httptest.NewRequest(c.method, c.path, strings.NewReader(c.body))
			r.Header.Set("Content-Type", c.kind)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != c.status || !strings.Contains(w.Body.String(), c.want) || !strings.Contains(w.Body.String(), `"error"`) {
				t.Errorf("status %d, %s; want %d and %s", w.Code, w.Body, c.status, c.want)
			}
			if (w.Code == http.StatusMethodNotAllowed) != (w.Header().Get("Allow") != "") {
				t.Errorf("status %d, Allow %q", w.Code, w.Header().Get("Allow"))
			}
		})
	}
	if list, err := s.Files(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("%v: %+v is left of what was refused", err, list)
	}
}
