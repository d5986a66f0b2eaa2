package ws

import (
	"bufio"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// python returns an interpreter that has the package websockets, as Debian's python3-websockets
// brings it. The system's comes second, for machines where another stands before it in PATH.
func python(t *testing.T) string {
	t.Helper()
	var why []string
	for _, name := range []string{"python3", "/usr/bin/python3"} {
		out, err := exec.CommandContext(t.Context(), name, "-c", "import websockets").CombinedOutput()
		if err == nil {
			return name
		}
		why = append(why, fmt.Sprintf("%s: %v %s", name, err, oneLine(string(out))))
	}
	t.Skipf("needs Python's websockets (apt-get install python3-websockets): %s", strings.Join(why, "; "))
	return ""
}

func TestPythonClientSpeaksToOurServer(t *testing.T) {
	addr, ended := interopServer(t)
	cmd := exec.CommandContext(t.Context(), python(t), "testdata/peer.py", "client", "ws://"+addr, fmt.Sprint(interopLimit))
	cmd.WaitDelay = time.Minute
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	wantEnd(t, ended, 4001, "döne")
	wantEnd(t, ended, StatusTooBig, "")
	wantEnd(t, ended, StatusTooBig, "")
}

func TestOurClientSpeaksToPythonServer(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), python(t), "testdata/peer.py", "server")
	cmd.WaitDelay = time.Minute
	var complaints strings.Builder // read once the process has ended
	cmd.Stderr = &complaints
	stop, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = stop.Close()
		if err := cmd.Wait(); err != nil || complaints.Len() > 0 {
			t.Errorf("%v\n%s", err, complaints.String())
		}
	}()
	said := bufio.NewScanner(out)
	if !said.Scan() {
		t.Fatalf("it says nothing: %v", said.Err())
	}
	converse(t, "ws://127.0.0.1:"+said.Text())
	lines := map[string]bool{} // in any order
	for range 2 {
		said.Scan()
		lines[said.Text()] = true
	}
	if !lines["closed 1013 "] || !lines["closed 4001 döne"] {
		t.Errorf("it says %v", lines)
	}
}
