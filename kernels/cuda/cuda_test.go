package cuda

import (
	"errors"
	"testing"
)

// Every machine and every build must live through this, with a driver or without.
func TestDevicesOfThisMachine(t *testing.T) {
	for range 2 { // the second time the library has been opened, and closed again if it was there
		list, err := Devices()
		switch {
		case errors.Is(err, ErrBuild), errors.Is(err, ErrNoDriver), errors.Is(err, ErrMismatch):
			t.Logf("no devices: %v", err)
		case err != nil:
			t.Errorf("asking for devices: %v", err)
		}
		for _, d := range list {
			if d.Name == "" || d.NUMA < -1 {
				t.Errorf("%+v", d)
			}
		}
	}
}
