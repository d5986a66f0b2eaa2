package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"kvasir/internal/machine"
	"kvasir/kernels/cuda"
	"kvasir/kernels/variant"
)

func TestKernelThatCannotBeHadEndsEveryCommand(t *testing.T) {
	t.Parallel()
	missing := "neon"
	if slices.Contains(variant.Available(), variant.NEON) {
		missing = "avx2"
	}
	least := map[string][]string{ // arguments without which a command does not come so far
		"worker": nil, "token revoke": {"00"}, "token grant": nil, "model profile": {"none.gguf"}, "model synth": {"none.gguf"},
		"batch run": {"in", "-o", "out"}, "batch submit": {"in"}, "batch watch": {"x"}, "batch fetch": {"x"}, "batch cancel": {"x"},
		"key revoke": {"x"}, "ledger grant": nil, "ledger pardon": nil,
		"wallet history": nil, "wallet export": nil, "wallet verify": {"none.json"},
	}
	for _, c := range commands {
		args, known := least[c]
		if known && args == nil {
			continue // what they need is not made up in a line
		}
		args = append(strings.Fields(c), args...)
		for _, x := range []struct{ wish, want string }{{"fast", `unknown kernel variant "fast", want one of portable`}, {missing, missing + " needs"}} {
			call{args: args, env: []string{"KVASIR_KERNEL=" + x.wish}}.run(t).wantFailure(t, statusFailed, "KVASIR_KERNEL: ", x.want)
		}
	}
	// Help and what is wrong with the command line go before.
	call{args: []string{"run", "--help"}, env: []string{"KVASIR_KERNEL=fast"}}.run(t).wantDone(t)
	call{args: []string{"run", "--tokns=3"}, env: []string{"KVASIR_KERNEL=fast"}}.run(t).wantFailure(t, statusUsage, "--tokens")
}

func TestDoctorNamesTheKernelThatWasAskedFor(t *testing.T) {
	t.Parallel()
	list := variant.Available()
	for _, v := range list {
		o, found := call{env: []string{"KVASIR_KERNEL=" + v.String()}}.verdicts(t)
		o.wantDone(t)
		want := note
		if v == list[len(list)-1] {
			want = good
		}
		if f := found["kernel"]; f.Verdict != want || !strings.HasPrefix(f.Text, v.String()+", asked for by KVASIR_KERNEL") {
			t.Errorf("%v: %+v", v, f)
		}
		var r doctorReport
		o.object(t, &r)
		if r.Kernel != v.String() || len(r.Kernels) != len(list) || r.GPUs == nil {
			t.Errorf("%v: kernel %s of %v, GPUs %v", v, r.Kernel, r.Kernels, r.GPUs)
		}
	}
	text := kvasir(t, "doctor").wantDone(t).stdout
	if c, err := variant.Choose(""); err != nil || !strings.Contains(text, c.Variant.String()+", "+c.Why) {
		t.Errorf("doctor does not print %v (%v):\n%s", c, err, text)
	}
}

func TestCachesInWords(t *testing.T) {
	for _, c := range []struct {
		want   string
		caches []machine.Cache
	}{
		{"this system does not tell", nil},
		{"L1d 32 KiB, L2 512 KiB", []machine.Cache{{Level: 1, Size: 32 << 10, Shared: 1, Count: 1}, {Level: 2, Size: 512 << 10, Shared: 1, Count: 1}}},
		{"L1d 2 x 32 KiB, L3 32 MiB", []machine.Cache{{Level: 1, Size: 32 << 10, Shared: 1, Count: 2}, {Level: 3, Size: 32 << 20, Shared: 2, Count: 1}}},
		{"L1d 16 x 48 KiB, L2 16 x 1280 KiB, L3 2 x 32 MiB (each for 16 cores)", []machine.Cache{
			{Level: 1, Size: 48 << 10, Shared: 2, Count: 16}, {Level: 2, Size: 1280 << 10, Shared: 2, Count: 16}, {Level: 3, Size: 32 << 20, Shared: 16, Count: 2},
		}},
	} {
		r := doctorReport{Machine: machine.Facts{Caches: c.caches}}
		if f := r.caches(); f.Verdict != good || f.Text != c.want {
			t.Errorf("%+v, want %s", f, c.want)
		}
	}
}

func TestBandwidthInWords(t *testing.T) {
	r := doctorReport{Machine: machine.Facts{Threads: 2}}
	if f := r.bandwidth(17.25e9); f.Verdict != good || f.Text != "17.2 GB/s read from memory by 2 threads" || r.ReadRate != 17.25e9 {
		t.Errorf("%+v, rate %d", f, r.ReadRate)
	}
	if f := r.bandwidth(0); f.Verdict != note || r.ReadRate != 0 {
		t.Errorf("%+v, rate %d", f, r.ReadRate)
	}
}

func TestGPUsInWords(t *testing.T) {
	whole := cuda.Device{Name: "NVIDIA H200", UUID: "GPU-1", PCI: "0000:17:00.0", Memory: 150754820096, NUMA: 1, PowerLimit: 700}
	for _, c := range []struct {
		name    string
		list    []cuda.Device
		err     error
		verdict verdict
		want    []string
	}{
		{"no driver", nil, fmt.Errorf("asking: %w", cuda.ErrNoDriver), good, []string{"none: no NVIDIA driver found"}},
		{"build that cannot", nil, cuda.ErrBuild, good, []string{"not looked for: only builds with cgo for Linux do"}},
		{"driver of another version", nil, cuda.ErrMismatch, note,
			[]string{"not known: the NVIDIA driver that is loaded and its library are of different versions"}},
		{"other error", nil, errors.New("cuda: counting devices: odd"), note, []string{"not known: cuda: counting devices: odd"}},
		{"driver and no device", []cuda.Device{}, nil, good, []string{"none: the NVIDIA driver sees none"}},
		{"two", []cuda.Device{whole, {Name: "unnamed GPU", NUMA: -1}}, nil, good,
			[]string{"NVIDIA H200, 151 GB, NUMA node 1, up to 700 W, at 0000:17:00.0", "unnamed GPU"}},
		{"lost", []cuda.Device{{Name: "GPU 0", NUMA: -1, Problem: "GPU is lost"}}, nil, note, []string{"GPU 0 does not answer: GPU is lost"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var r doctorReport
			var texts []string
			for _, f := range r.gpus(c.list, c.err) {
				texts = append(texts, f.Text)
				if f.Verdict != c.verdict || f.Verdict == note && f.Do == "" {
					t.Errorf("%+v, want verdict %s", f, c.verdict)
				}
			}
			if !slices.Equal(texts, c.want) || r.GPUs == nil || len(r.GPUs) != len(c.list) {
				t.Errorf("%q, want %q; in the report %v", texts, c.want, r.GPUs)
			}
		})
	}
}

func TestPinnedMemoryInWords(t *testing.T) {
	for _, c := range []struct {
		name    string
		locked  int64
		why     string
		verdict verdict
		text    string
	}{
		{"all", slabMemory, "", good, "67.1 MB of memory for rows and frames can be locked"},
		{"some", 8 << 20, "the limit of locked memory is 8192 KiB", note,
			"8.39 MB of 67.1 MB for rows and frames can be locked: the limit of locked memory is 8192 KiB"},
		{"none", 0, "this build locks no memory", note, "0 B of 67.1 MB for rows and frames can be locked: this build locks no memory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var r doctorReport
			f := r.pinned(func(want int64) (int64, string) { return c.locked, c.why })
			if f.Verdict != c.verdict || f.Text != c.text || strings.Contains(f.Do, "LimitMEMLOCK") != (c.verdict == note) {
				t.Errorf("%+v", f)
			}
			if r.Pinned != (pinnedMemory{c.locked, slabMemory, c.why}) {
				t.Errorf("%+v", r.Pinned)
			}
		})
	}
}
