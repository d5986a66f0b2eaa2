//go:build cgo && linux

package cuda

import (
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Devices lists the devices in the order of the driver.
func Devices() ([]Device, error) {
	l := nvml.New()
	return devices(l, l.Extensions(), os.DirFS("/"))
}

// library is the part of nvml.Interface that is used.
type library interface {
	Init() nvml.Return
	Shutdown() nvml.Return
	DeviceGetCount() (int, nvml.Return)
	DeviceGetHandleByIndex(index int) (nvml.Device, nvml.Return)
}

// symbols tells whether the library that was opened has a function: nvml.ExtendedInterface.
type symbols interface {
	LookupSymbol(name string) error
}

// required are the functions without which nothing can be listed, by their first versions; go-nvml takes
// later ones where it finds them.
var required = []string{"nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex", "nvmlShutdown"}

func devices(l library, s symbols, root fs.FS) ([]Device, error) {
	// Until Init has succeeded, the library may not be open, and then any other call ends the process.
	switch r := l.Init(); r {
	case nvml.SUCCESS:
	case nvml.ERROR_LIBRARY_NOT_FOUND, nvml.ERROR_DRIVER_NOT_LOADED:
		return nil, ErrNoDriver
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return nil, ErrMismatch
	default:
		return nil, fmt.Errorf("cuda: opening the driver's library: %s", text(s, r))
	}
	for _, name := range required {
		if s.LookupSymbol(name) != nil {
			return nil, fmt.Errorf("cuda: the driver's library is too old: it has no %s", name)
		}
	}
	defer l.Shutdown() //nolint:errcheck // nothing depends on it any more
	n, r := l.DeviceGetCount()
	if r != nvml.SUCCESS {
		return nil, fmt.Errorf("cuda: counting devices: %s", text(s, r))
	}
	list := make([]Device, 0, n)
	for i := range n {
		handle, r := l.DeviceGetHandleByIndex(i)
		if r != nvml.SUCCESS {
			// One that has fallen off the bus hides none of the others.
			list = append(list, Device{Name: fmt.Sprintf("GPU %d", i), NUMA: -1, Problem: text(s, r)})
			continue
		}
		list = append(list, describe(handle, s, root))
	}
	return list, nil
}

// describe asks for each field by itself: what one device, or an old driver, does not tell stays unknown.
func describe(d nvml.Device, s symbols, root fs.FS) Device {
	out := Device{Name: "unnamed GPU", NUMA: -1}
	if name, ok := ask(s, "nvmlDeviceGetName", d.GetName); ok && name != "" {
		out.Name = name
	}
	out.UUID, _ = ask(s, "nvmlDeviceGetUUID", d.GetUUID)
	if m, ok := ask(s, "nvmlDeviceGetMemoryInfo", d.GetMemoryInfo); ok {
		out.Memory = m.Total
	}
	if milliwatts, ok := ask(s, "nvmlDeviceGetEnforcedPowerLimit", d.GetEnforcedPowerLimit); ok {
		out.PowerLimit = float64(float64(milliwatts) / 1000)
	}
	if pci, ok := ask(s, "nvmlDeviceGetPciInfo", d.GetPciInfo); ok {
		out.PCI = fmt.Sprintf("%04x:%02x:%02x.0", pci.Domain, pci.Bus, pci.Device)
		out.NUMA = node(root, out.PCI)
	}
	return out
}

// ask calls a function of the library if it has it.
func ask[T any](s symbols, name string, get func() (T, nvml.Return)) (T, bool) {
	var none T
	if s.LookupSymbol(name) != nil {
		return none, false
	}
	v, r := get()
	if r != nvml.SUCCESS {
		return none, false
	}
	return v, true
}

// text puts an error into words now: later the library, which has them, is closed.
func text(s symbols, r nvml.Return) string {
	if s.LookupSymbol("nvmlErrorString") != nil {
		return fmt.Sprintf("error %d", int32(r))
	}
	return r.Error()
}

// node reads the NUMA node of a device on the bus; the kernel says -1 where the firmware names none. NVML's
// own question is about GPUs whose memory is a node.
func node(root fs.FS, pci string) int {
	text, err := fs.ReadFile(root, "sys/bus/pci/devices/"+pci+"/numa_node")
	if err != nil {
		return -1
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || n < 0 {
		return -1
	}
	return n
}
