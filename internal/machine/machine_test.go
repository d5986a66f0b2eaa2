package machine

import (
	"runtime"
	"testing"
)

func TestReadKnowsThisMachine(t *testing.T) {
	f := Read()
	if f.CPU == "" || f.Cores < 1 || f.Threads < 1 || f.Features == nil {
		t.Errorf("%+v", f)
	}
	if f.Available > f.Memory {
		t.Errorf("%d bytes available of %d", f.Available, f.Memory)
	}
	if runtime.GOOS == "linux" && f.Memory == 0 {
		t.Error("Linux tells how much memory there is")
	}
}
