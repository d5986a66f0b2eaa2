package worker

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"
)

// tick is what /proc counts in: USER_HZ, which is 100 on every architecture that Go runs on.
const tick = 10 * time.Millisecond

// systemLoad reads proc(5): the first line of /proc/stat, and what this process had of it.
func systemLoad() (all, others time.Duration, err error) {
	system, err := head("/proc/stat", 512)
	if err != nil {
		return 0, 0, err
	}
	own, err := head("/proc/self/stat", 4096)
	if err != nil {
		return 0, 0, err
	}
	return parseLoad(system, own)
}

// head reads the beginning of a file.
func head(path string, n int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it is only read
	return io.ReadAll(io.LimitReader(f, n))
}

var errProc = errors.New("/proc is not as expected")

// parseLoad reads "cpu user nice system idle iowait irq softirq steal …" and "pid (name) state …", where
// the 14th and 15th are user and system. Time that is stolen by other machines of a host counts as
// others': there is nothing to be had from it.
func parseLoad(system, own []byte) (all, others time.Duration, err error) {
	line, _, _ := bytes.Cut(system, []byte("\n"))
	fields := bytes.Fields(line)
	if len(fields) < 9 || string(fields[0]) != "cpu" {
		return 0, 0, fmt.Errorf("%w: stat begins with %.60q", errProc, line)
	}
	var n [8]int64
	for i := range n {
		if n[i], err = strconv.ParseInt(string(fields[i+1]), 10, 64); err != nil {
			return 0, 0, fmt.Errorf("%w: %w", errProc, err)
		}
		all += time.Duration(n[i]) * tick
	}
	idle := time.Duration(n[3]+n[4]) * tick
	end := bytes.LastIndexByte(own, ')') // a name may hold anything
	rest := bytes.Fields(own[end+1:])
	if end < 0 || len(rest) < 13 {
		return 0, 0, fmt.Errorf("%w: self/stat is %.60q", errProc, own)
	}
	var mine int64
	for _, f := range rest[11:13] {
		v, err := strconv.ParseInt(string(f), 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("%w: %w", errProc, err)
		}
		mine += v
	}
	return all, all - idle - time.Duration(mine)*tick, nil
}
