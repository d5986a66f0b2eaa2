package main

import (
	"runtime"
	"runtime/debug"
	"strconv"

	"kvasir/engine/metrics"
	"kvasir/kernels/ref"
)

type versionCmd struct {
	jsonFlag
}

// Help is printed by kvasir version --help.
func (versionCmd) Help() string {
	return `Two programs get the same bits if their arithmetic versions are equal, whatever else differs.

Example:

    kvasir version --json`
}

// buildVersion says which program this is. What the build did not record is empty.
type buildVersion struct {
	Version    string `json:"version"`
	Commit     string `json:"commit,omitempty"`
	CommitTime string `json:"commit_time,omitempty"`
	Modified   bool   `json:"modified,omitempty"` // the tree differed from the commit
	Go         string `json:"go"`
	OS         string `json:"os"`
	Arch       string `json:"arch"`
	Arithmetic int    `json:"arithmetic"`
}

func readVersion(info *debug.BuildInfo) buildVersion {
	v := buildVersion{
		Version: "(devel)", Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH,
		Arithmetic: ref.Arithmetic,
	}
	if info == nil {
		return v
	}
	if info.Main.Version != "" {
		v.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Commit = s.Value
		case "vcs.time":
			v.CommitTime = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}

// version reads what the linker wrote into this program.
func version() buildVersion {
	info, _ := debug.ReadBuildInfo()
	return readVersion(info)
}

// commit names the commit in words.
func (v buildVersion) commit() string {
	switch {
	case v.Commit == "":
		return "not recorded in this build"
	case v.Modified:
		return v.Commit + ", with changes since"
	}
	return v.Commit
}

// Run prints the version.
func (c versionCmd) Run(a *app) error {
	v := version()
	if c.JSON {
		return a.stdout.printJSON(v)
	}
	a.stdout.printf("kvasir %s\ncommit      %s\ngo          %s %s/%s\narithmetic  %d\n",
		v.Version, v.commit(), v.Go, v.OS, v.Arch, v.Arithmetic)
	return nil
}

// build is what metrics say of this program.
func build() metrics.Build {
	v := version()
	return metrics.Build{Version: v.Version, Commit: v.Commit, Arithmetic: strconv.Itoa(v.Arithmetic)}
}
