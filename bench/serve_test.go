package bench

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// smallServe is a second of the built-in model, with the client in this process.
func smallServe() Serve {
	s := QuickServe()
	s.Sequences, s.Tokens, s.Pairs, s.least = []int{1, 3}, 400, 1, time.Millisecond
	return s
}

func TestServeHasTheSameTextBothWays(t *testing.T) {
	rows := 0
	r, err := smallServe().Run(t.Context(), Observer[ServeReport, ServeResult]{Row: func(ServeResult) { rows++ }})
	if err != nil {
		t.Fatal(err)
	}
	if rows != 2 || len(r.Results) != 2 || len(r.Different()) != 0 || len(r.Bars) != 0 {
		t.Fatalf("%d rows: %+v", rows, r)
	}
	for _, x := range r.Results {
		if x.Direct <= 0 || x.HTTP <= 0 || x.Ratio <= 0 || !*x.Identical || x.Pairs != 1 {
			t.Errorf("%+v", x)
		}
		if x.Beyond != nil || x.Door != nil {
			t.Errorf("the client was here, and its time is told apart: %+v", x)
		}
	}
}

func TestServeTellsWhereTextsDiffer(t *testing.T) {
	p := &servePoint{r: &serveRun{}, identical: true}
	p.same([]string{"a", "b"})
	p.same([]string{"a"})
	if !p.identical {
		t.Error("the same texts differ")
	}
	if p.same([]string{"a", "c"}); p.identical {
		t.Error("another text is the same")
	}
}

// TestClientsThatVanishLeaveNothing has clients go in the middle of their streams: no sequence, no memory, no
// place and no goroutine is left of them.
func TestClientsThatVanishLeaveNothing(t *testing.T) {
	s := QuickServe()
	s.Vanish = 100
	r, err := s.Run(t.Context(), Observer[ServeReport, ServeResult]{})
	if err != nil {
		t.Fatal(err)
	}
	v := r.Vanish
	if v == nil || !v.Clean || v.Before.Sequences < 50 || v.After.Sequences != 0 || v.After.Memory != 0 || v.After.Places != 0 || v.After.Queued != 0 {
		t.Errorf("%+v", v)
	}
	if len(r.Bars) != 1 || !strings.Contains(strings.Join(r.Remarks(), " "), "100 clients went") {
		t.Errorf("%+v", r)
	}
	held := ServeLeft{Goroutines: 3}
	if (&ServeLeft{Goroutines: 4}).within(&held) || (&ServeLeft{Memory: 1}).within(&held) {
		t.Error("what is left is not seen")
	}
}

// TestLoadIsRefusedAndNothingFails asks more than fits: what does not is told to come again, and when. Where the
// machine stood still for the part of a second that is looked at, it asks again.
func TestLoadIsRefusedAndNothingFails(t *testing.T) {
	s := QuickServe()
	s.Load, s.Tokens, s.running, s.waiting = 3*time.Second, 2, 2, 2
	const most = 20
	for try := range most {
		r, err := s.Run(t.Context(), Observer[ServeReport, ServeResult]{})
		if err != nil {
			t.Fatal(err)
		}
		l := r.Load
		if l == nil || l.Failed != 0 || l.Silent != 0 || l.RefusedP99 < l.RefusedP50 {
			t.Fatalf("%+v", l)
		}
		for _, b := range r.Bars { // so short a run says nothing of speed
			if b.Verdict != few && b.Name != "failures, and refusals without Retry-After" {
				t.Errorf("%+v", b)
			}
		}
		if l.Done > 0 && l.Refused > 0 && l.Goodput > 0 {
			return
		}
		t.Logf("try %d: %+v", try, l)
	}
	t.Errorf("%d times nothing was answered, or nothing refused", most)
}

// TestLoadIsComparedWithTheBestBesideIt has a machine that gets slower: each part is compared with its neighbours,
// and one whose neighbours differ says nothing.
func TestLoadIsComparedWithTheBestBesideIt(t *testing.T) {
	at := func(rate int64) served {
		return served{tokens: rate, took: time.Second, steps: 10, rows: 2 * rate, prompts: rate}
	}
	news := func(us ...int64) clientNews {
		return clientNews{Took: time.Second, Asked: clientCounts{Done: 1, Refused: len(us), Times: us}}
	}
	l := loading{r: &serveRun{}, x: ServeLoad{Rounds: 3}, best: []served{at(1000), at(980), at(500), at(500)}, under: []served{at(900), at(1), at(490)}}
	l.bestNews = []clientNews{news(), news(), news(), news()}
	l.underNews = []clientNews{news(1000, 3000), news(2000), news(9000)}
	l.held = []int64{1e6, 1e6, 2e6, 2e6}
	l.finish()
	x := l.x
	if x.Dropped != 1 || x.noisy() || x.Share != round((900./990+490./500)/2) || x.Done != 3 || x.Refused != 4 {
		t.Errorf("%+v", x)
	}
	if x.RefusedP50 != 3 || x.RefusedP99 != 9 || x.Early != 1 || x.Late != 2 || x.Under.Rows != round(2*1391./30) || x.Under.Prompts != round(1391./30) {
		t.Errorf("%+v", x)
	}
	l.best[1], l.under[1] = at(700), at(700) // now all neighbours differ
	if l.finish(); !l.x.noisy() {
		t.Errorf("%+v", l.x)
	}
}

func TestAnswersUnderLoadDifferInLengthAndEnd(t *testing.T) {
	j := clientJob{Tokens: 32, Prompts: prompts(97)}
	sum, seen := 0, map[int]bool{}
	for i := range j.Prompts {
		_, body, _ := strings.Cut(string(j.request(i)), "\r\n\r\n")
		var o struct {
			Tokens int `json:"max_tokens"`
		}
		if err := json.Unmarshal([]byte(body), &o); err != nil {
			t.Fatal(err)
		}
		sum += o.Tokens
		seen[o.Tokens] = true
	}
	if mean := sum / len(j.Prompts); mean < 30 || mean > 33 || len(seen) != lengths {
		t.Errorf("%d tokens in the mean, %d lengths", mean, len(seen))
	}
	for text, ok := range map[string]bool{
		"data: [DONE]\n\n": true, strings.Repeat("x", 5000) + "data: [DONE]\n\n": true, "data: [DONE]\n": false, "": false,
		"data: [DONE]\n\n: more": false,
	} {
		if err := finished(iotest.OneByteReader(strings.NewReader(text))); (err == nil) != ok {
			t.Errorf("%.20q: %v", text, err)
		}
	}
}

func TestBarsOfServeAreJudged(t *testing.T) {
	r := &ServeReport{Machine: Machine{Int8Peak: anchorPeak / 2, Read: anchorRead / 2}, Results: []ServeResult{
		{Streams: 64, HTTP: 551, Ratio: 0.5, Pairs: 5},
		{Streams: 256, HTTP: 699, Ratio: 0.95, Door: new(20.5), Pairs: 5},
	}}
	r.judge(true)
	got := strings.Join(r.Missed(), "\n")
	want := "256 streams through HTTP: 699.0 tokens/s, bar 700.0\nserver beyond the model, a token: 20.50 us, bar 20.00"
	if got != want || len(r.Bars) != 4 {
		t.Errorf("missed %s\nwant %s\n%+v", got, want, r.Bars)
	}
	r = &ServeReport{Load: &ServeLoad{Seconds: 300, Rounds: 5, Share: 0.89, Refused: 9, RefusedP99: 51, Failed: 1, Early: 100, Late: 104}}
	if r.judge(false); len(r.Missed()) != 4 {
		t.Errorf("missed %q", r.Missed())
	}
	r = &ServeReport{Vanish: &ServeVanish{Clients: 1000, Seconds: 1}} // not clean
	if r.judge(false); len(r.Missed()) != 1 {
		t.Errorf("missed %q", r.Missed())
	}
}

func TestServeRefusesSettings(t *testing.T) {
	for name, f := range map[string]func(*Serve){
		"--like":      func(s *Serve) { s.Like = "none" },
		"--sequences": func(s *Serve) { s.Sequences = nil },
		"--tokens":    func(s *Serve) { s.Tokens = 0 },
		"--load":      func(s *Serve) { s.Load = time.Millisecond },
		"--vanish":    func(s *Serve) { s.Vanish = -1 },
		"at a time":   func(s *Serve) { s.Load, s.Vanish = time.Minute, 5 },
	} {
		s := QuickServe()
		f(&s)
		if err := s.Check(); !errors.Is(err, ErrSettings) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestDoorIsMeasuredToItsEnd runs the door alone, with a client of this process.
func TestDoorIsMeasuredToItsEnd(t *testing.T) {
	if us, err := (&serveRun{}).doorOnce(t.Context(), 4); err != nil || us < 0 {
		t.Errorf("%v us, %v", us, err)
	}
}

func TestWhatAStreamSaysIsRead(t *testing.T) {
	const head = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
	for _, c := range []struct{ raw, text, err string }{
		{head + "data: {\"choices\":[{\"text\":\"a\"}]}\n\n: waiting\n\ndata: {\"choices\":[{\"text\":\"b\"}]}\n\ndata: [DONE]\n\n", "ab", ""},
		{head + "data: {\"choices\":[{\"text\":\"a\"}]}\n\n", "", "ends in the middle"},
		{head + "data: {\"error\":{\"message\":\"no worker\"}}\n\n", "", "no worker"},
		{"HTTP/1.1 429 Too Many Requests\r\nConnection: close\r\n\r\nlater", "", "429 Too Many Requests: later"},
	} {
		text, err := streamText([]byte(c.raw))
		if text != c.text || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%q: %q, %v", c.raw, text, err)
		}
	}
}

func TestPlacesFillWithoutAStampede(t *testing.T) {
	j := clientJob{Rate: 10, Burst: 100}
	for _, c := range []struct {
		after time.Duration
		want  int
	}{{0, 0}, {fillTime / 2, 60}, {fillTime, 120}, {2 * fillTime, 140}} {
		if got := j.due(c.after); got != c.want {
			t.Errorf("%d requests after %v, want %d", got, c.after, c.want)
		}
	}
}
