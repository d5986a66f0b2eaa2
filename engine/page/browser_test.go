package page

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// patience is how long a test waits for what must come.
const patience = 3 * time.Minute

// tab is a page in headless Chromium, spoken to by its DevTools protocol.
type tab struct {
	t    *testing.T
	ctx  context.Context
	conn *websocket.Conn
	page string // session of the page

	mu      sync.Mutex
	next    int
	waiting map[int]chan reply
	faults  []string // what the console said, under mu
}

type reply struct {
	Result json.RawMessage
	Error  *struct{ Message string }
}

// newTab starts a browser with one empty page. It ends with the test.
func newTab(t *testing.T) *tab {
	t.Helper()
	program, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("chromium is not installed: apt-get install chromium")
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	cmd := exec.CommandContext(ctx, program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
		"--no-first-run", "--remote-debugging-port=0", "--user-data-dir="+t.TempDir(), "about:blank")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	b := &tab{t: t, ctx: ctx, waiting: map[int]chan reply{}}
	read := make(chan struct{}) // closed when nobody reads any more
	t.Cleanup(func() {
		if b.conn != nil {
			b.send("Browser.close", nil) // its files are written, and can be removed
			<-read
		}
		_ = cmd.Wait() // it was killed, or ended well
		cancel()
	})
	lines := bufio.NewScanner(stderr)
	address := ""
	for address == "" && lines.Scan() {
		if _, after, ok := strings.Cut(lines.Text(), "DevTools listening on "); ok {
			address = after
		}
	}
	if address == "" {
		t.Fatalf("chromium does not start: %v", lines.Err())
	}
	go func() { // ends with the browser
		for lines.Scan() {
		}
	}()
	conn, res, err := websocket.Dial(ctx, address, nil)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	if res.Body != nil {
		_ = res.Body.Close()
	}
	conn.SetReadLimit(64 << 20)
	b.conn = conn
	go func() { defer close(read); b.read() }() // ends with the connection
	b.attach()
	return b
}

func (b *tab) read() {
	for {
		_, data, err := b.conn.Read(b.ctx)
		b.mu.Lock()
		if err != nil {
			for _, c := range b.waiting {
				close(c)
			}
			b.waiting = nil
			b.mu.Unlock()
			return
		}
		var m struct {
			reply
			ID     int
			Method string
			Params json.RawMessage
		}
		_ = json.Unmarshal(data, &m) // what is no message has no id and no method
		if c := b.waiting[m.ID]; c != nil {
			c <- m.reply
			delete(b.waiting, m.ID)
		}
		quiet := m.Method == "Runtime.consoleAPICalled" && !strings.Contains(string(m.Params), `"type":"error"`) ||
			m.Method == "Log.entryAdded" && !strings.Contains(string(m.Params), `"level":"error"`)
		switch m.Method {
		case "Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded":
			if !quiet {
				b.faults = append(b.faults, string(m.Params))
			}
		}
		b.mu.Unlock()
	}
}

// send sends a command to the page, or to the browser before there is one; its answer comes by the channel.
func (b *tab) send(method string, params any) chan reply {
	b.t.Helper()
	b.mu.Lock()
	b.next++
	id, c := b.next, make(chan reply, 1)
	if b.waiting == nil {
		close(c)
	} else {
		b.waiting[id] = c
	}
	b.mu.Unlock()
	m := map[string]any{"id": id, "method": method, "params": params}
	if params == nil {
		m["params"] = struct{}{}
	}
	if b.page != "" && !strings.HasPrefix(method, "Browser.") && !strings.HasPrefix(method, "Target.") {
		m["sessionId"] = b.page
	}
	data, err := json.Marshal(m)
	if err == nil {
		err = b.conn.Write(b.ctx, websocket.MessageText, data)
	}
	if err != nil {
		b.t.Errorf("%s: %v", method, err)
	}
	return c
}

// call sends a command and waits for its answer.
func (b *tab) call(method string, params, result any) {
	b.t.Helper()
	r, ok := <-b.send(method, params)
	if !ok || r.Error != nil {
		b.t.Fatalf("%s: %+v, connected %v", method, r.Error, ok)
	}
	if result != nil {
		if err := json.Unmarshal(r.Result, result); err != nil {
			b.t.Fatal(err)
		}
	}
}

func (b *tab) attach() {
	var target struct{ TargetID string }
	b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var s struct{ SessionID string }
	b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &s)
	b.page = s.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log"} {
		b.call(domain+".enable", nil, nil)
	}
}

// eval returns what an expression of JavaScript is, waiting where it is a promise.
func (b *tab) eval(expression string) (value any) {
	b.t.Helper()
	var r struct {
		Result    struct{ Value any }
		Exception json.RawMessage `json:"exceptionDetails"`
	}
	b.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &r)
	if r.Exception != nil {
		b.t.Fatalf("%s: %s", expression, r.Exception)
	}
	return r.Result.Value
}

// await waits until an expression is true.
func (b *tab) await(condition string) {
	b.t.Helper()
	b.eval(`new Promise((done) => { const look = () => (` + condition + `) ? done(true) : setTimeout(look, 20); look(); })`)
}

// view sets the size of the window, and whether the reader wants it dark.
func (b *tab) view(width, height int, scheme string) {
	b.t.Helper()
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{
		"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}, nil)
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []any{map[string]any{"name": "prefers-color-scheme", "value": scheme}}}, nil)
}

// key presses a key; ctrl is whether Ctrl is held.
func (b *tab) key(name string, code int, ctrl bool) {
	b.t.Helper()
	modifiers := 0
	if ctrl {
		modifiers = 2
	}
	for _, kind := range []string{"rawKeyDown", "keyUp"} {
		b.call("Input.dispatchKeyEvent", map[string]any{
			"type": kind, "key": name, "code": name, "windowsVirtualKeyCode": code, "modifiers": modifiers}, nil)
	}
}

// clean fails where the console has an error.
func (b *tab) clean() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.faults) > 0 {
		b.t.Errorf("the console says %s", strings.Join(b.faults, "\n"))
	}
	b.faults = nil
}

// contrast is the ratio of the text's brightness to that of what is behind it, as WCAG 2 counts it.
func (b *tab) contrast(selector string) float64 {
	b.t.Helper()
	v, ok := b.eval(fmt.Sprintf(`(() => {
		const part = (c) => { c /= 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
		const bright = (s) => { const [r, g, b] = s.match(/[\d.]+/g).map(Number); return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b); };
		let e = document.querySelector(%q);
		const front = bright(getComputedStyle(e).color);
		while (e && /^rgba\(.*, 0\)$|transparent/.test(getComputedStyle(e).backgroundColor)) e = e.parentElement;
		const back = bright(getComputedStyle(e ?? document.body).backgroundColor);
		return (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
	})()`, selector)).(float64)
	if !ok {
		b.t.Fatalf("%s has no contrast", selector)
	}
	return v
}
