package machine

import (
	"strings"
	"unsafe"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/registry"
)

func cpuName() string {
	key, err := registry.OpenKey(registry.LOCAL_MACHINE,
		`HARDWARE\DESCRIPTION\System\CentralProcessor\0`, registry.QUERY_VALUE)
	if err != nil {
		return ""
	}
	defer key.Close() //nolint:errcheck // it was only read
	name, _, _ := key.GetStringValue("ProcessorNameString")
	return strings.TrimSpace(name)
}

// memoryStatus is MEMORYSTATUSEX.
type memoryStatus struct {
	length                                   uint32
	load                                     uint32
	totalPhysical, availablePhysical         uint64
	totalPageFile, availablePageFile         uint64
	totalVirtual, availableVirtual, extended uint64
}

var globalMemoryStatus = windows.NewLazySystemDLL("kernel32.dll").NewProc("GlobalMemoryStatusEx")

func memory() (total, available uint64) {
	var s memoryStatus
	s.length = uint32(unsafe.Sizeof(s))
	if ok, _, _ := globalMemoryStatus.Call(uintptr(unsafe.Pointer(&s))); ok == 0 {
		return 0, 0
	}
	return s.totalPhysical, s.availablePhysical
}

// Windows tells of caches and nodes too, in records of many shapes; nothing needs them there so far.
func caches() []Cache { return []Cache{} }

func nodes() []Node { return []Node{} }
