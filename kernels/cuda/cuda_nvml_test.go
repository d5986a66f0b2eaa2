//go:build cgo && linux

package cuda

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// fake is a library as a driver might ship it. Like the real one it dies of a call that it does not have.
type fake struct {
	t       *testing.T
	init    nvml.Return
	count   nvml.Return
	devices []nvml.Device // nil: has fallen off the bus
	lacks   []string
	open    bool
}

func (f *fake) LookupSymbol(name string) error {
	if !f.open || slices.Contains(f.lacks, name) {
		return errors.New("not there")
	}
	return nil
}

func (f *fake) Init() nvml.Return {
	f.open = f.init != nvml.ERROR_LIBRARY_NOT_FOUND
	return f.init
}

func (f *fake) use(name string) {
	f.t.Helper()
	if f.LookupSymbol(name) != nil || f.init != nvml.SUCCESS {
		f.t.Fatalf("%s is called: the process would have died", name)
	}
}

func (f *fake) Shutdown() nvml.Return {
	f.use("nvmlShutdown")
	f.open = false
	return nvml.SUCCESS
}

func (f *fake) DeviceGetCount() (int, nvml.Return) {
	f.use("nvmlDeviceGetCount")
	return len(f.devices), f.count
}

func (f *fake) DeviceGetHandleByIndex(i int) (nvml.Device, nvml.Return) {
	f.use("nvmlDeviceGetHandleByIndex")
	if f.devices[i] == nil {
		return nil, nvml.ERROR_GPU_IS_LOST
	}
	return f.devices[i], nvml.SUCCESS
}

// card answers with one return to what is asked; any other question is a nil pointer.
type card struct {
	nvml.Device
	r nvml.Return
}

func (c card) GetName() (string, nvml.Return) { return "NVIDIA H200", c.r }

func (c card) GetUUID() (string, nvml.Return) { return "GPU-1", c.r }

func (c card) GetMemoryInfo() (nvml.Memory, nvml.Return) {
	return nvml.Memory{Total: 150754820096, Free: 1}, c.r
}

func (c card) GetEnforcedPowerLimit() (uint32, nvml.Return) { return 700500, c.r }

func (c card) GetPciInfo() (nvml.PciInfo, nvml.Return) {
	return nvml.PciInfo{Domain: 1, Bus: 0xab, Device: 2}, c.r
}

var (
	whole   = Device{"NVIDIA H200", "GPU-1", "0001:ab:02.0", 150754820096, 1, 700.5, ""}
	unknown = Device{Name: "unnamed GPU", NUMA: -1}
	numa    = fstest.MapFS{"sys/bus/pci/devices/0001:ab:02.0/numa_node": {Data: []byte("1\n")}}
)

func TestDevicesMapsWhatTheDriverTells(t *testing.T) {
	without := func(change func(*Device)) Device {
		d := whole
		change(&d)
		return d
	}
	good, mute := card{r: nvml.SUCCESS}, card{r: nvml.ERROR_NOT_SUPPORTED}
	for _, c := range []struct {
		name string
		f    fake
		want []Device
	}{
		{"none", fake{}, []Device{}},
		{"one", fake{devices: []nvml.Device{good}}, []Device{whole}},
		{"one that tells nothing, and one", fake{devices: []nvml.Device{mute, good}}, []Device{unknown, whole}},
		{"one that is lost, and one", fake{devices: []nvml.Device{nil, good}},
			[]Device{{Name: "GPU 0", NUMA: -1, Problem: "ERROR_GPU_IS_LOST"}, whole}},
		{"lost, in a library without words", fake{devices: []nvml.Device{nil}, lacks: []string{"nvmlErrorString"}},
			[]Device{{Name: "GPU 0", NUMA: -1, Problem: "error 15"}}},
		{"library without a power limit", fake{devices: []nvml.Device{good}, lacks: []string{"nvmlDeviceGetEnforcedPowerLimit"}},
			[]Device{without(func(d *Device) { d.PowerLimit = 0 })}},
		{"library without a bus", fake{devices: []nvml.Device{good}, lacks: []string{"nvmlDeviceGetPciInfo"}},
			[]Device{without(func(d *Device) { d.PCI, d.NUMA = "", -1 })}},
		{"library with nothing but a list", fake{devices: []nvml.Device{good}, lacks: []string{"nvmlDeviceGetName",
			"nvmlDeviceGetUUID", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetPciInfo"}},
			[]Device{unknown}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.f.t = t
			got, err := devices(&c.f, &c.f, numa)
			if err != nil || !slices.Equal(got, c.want) {
				t.Errorf("got %+v, %v, want %+v", got, err, c.want)
			}
			if c.f.open {
				t.Error("the library was left open")
			}
		})
	}
}

func TestDevicesSaysWhyThereAreNone(t *testing.T) {
	for _, c := range []struct {
		name string
		f    fake
		want error
		text string
	}{
		{"no library", fake{init: nvml.ERROR_LIBRARY_NOT_FOUND}, ErrNoDriver, "no NVIDIA driver found"},
		{"no driver", fake{init: nvml.ERROR_DRIVER_NOT_LOADED}, ErrNoDriver, "no NVIDIA driver found"},
		{"another driver", fake{init: nvml.ERROR_LIB_RM_VERSION_MISMATCH}, ErrMismatch, "different versions"},
		{"no right", fake{init: nvml.ERROR_NO_PERMISSION}, nil, "opening the driver's library: ERROR_NO_PERMISSION"},
		{"no right, no words", fake{init: nvml.ERROR_NO_PERMISSION, lacks: []string{"nvmlErrorString"}}, nil, "error 4"},
		{"no count", fake{count: nvml.ERROR_UNKNOWN}, nil, "counting devices: ERROR_UNKNOWN"},
		{"no function that counts", fake{lacks: []string{"nvmlDeviceGetCount"}}, nil, "no nvmlDeviceGetCount"},
		{"no function that lists", fake{lacks: []string{"nvmlDeviceGetHandleByIndex"}}, nil, "no nvmlDeviceGetHandleByIndex"},
		{"no function that ends", fake{lacks: []string{"nvmlShutdown"}}, nil, "no nvmlShutdown"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.f.t = t
			got, err := devices(&c.f, &c.f, numa)
			if got != nil || err == nil || !strings.Contains(err.Error(), c.text) {
				t.Fatalf("got %v, %v, want an error with %q", got, err, c.text)
			}
			if c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("%v is not %v", err, c.want)
			}
		})
	}
}

func TestNodeIsUnknownUnlessTheSystemSaysIt(t *testing.T) {
	const pci = "0001:ab:02.0"
	for _, c := range []struct {
		text string
		want int
	}{{"0\n", 0}, {"3\n", 3}, {"-1\n", -1}, {"-2\n", -1}, {"", -1}, {"many\n", -1}} {
		root := fstest.MapFS{"sys/bus/pci/devices/" + pci + "/numa_node": {Data: []byte(c.text)}}
		if got := node(root, pci); got != c.want {
			t.Errorf("node of %q is %d, want %d", c.text, got, c.want)
		}
	}
	if got := node(fstest.MapFS{}, pci); got != -1 {
		t.Errorf("node of a device that is not there is %d", got)
	}
}
