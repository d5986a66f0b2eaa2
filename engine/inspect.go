package engine

import (
	"cmp"
	"context"
	"encoding/hex"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"kvasir/engine/experts"
	"kvasir/engine/gguf"
	"kvasir/engine/model"
	"kvasir/kernels/ref"
)

// Info is what a model file holds.
type Info struct {
	Name         string `json:"name"`
	Architecture string `json:"architecture"`
	Version      uint32 `json:"gguf_version"`
	Bytes        int64  `json:"bytes"`

	// Files are the parts of a split model; there is one of any other.
	Files []FileInfo `json:"files"`

	// Runs says whether Kvasir can run the file; Problem why it cannot.
	Runs    bool   `json:"runs"`
	Problem string `json:"problem,omitempty"`

	// Shape and Memory are absent for an architecture that is not supported.
	Shape  *ShapeInfo  `json:"shape,omitempty"`
	Memory *MemoryInfo `json:"memory_per_sequence,omitempty"`

	Parts    []PartInfo   `json:"parts"`   // bytes by role, the largest first
	Formats  []FormatInfo `json:"formats"` // bytes by format, the largest first
	Slices   *SliceInfo   `json:"slices,omitempty"`
	Tensors  []TensorInfo `json:"tensors"`
	Metadata []gguf.Entry `json:"metadata"`
}

// FileInfo is one file of a model.
type FileInfo struct {
	Name    string `json:"name"`
	Bytes   int64  `json:"bytes"`
	Tensors int    `json:"tensors"`
}

// ShapeInfo is the dimensions of a model.
type ShapeInfo struct {
	Layers     int `json:"layers"`
	Recurrent  int `json:"recurrent_layers"` // of these, with gated DeltaNet instead of attention
	MTP        int `json:"mtp_blocks"`
	Hidden     int `json:"hidden"`
	Experts    int `json:"experts_per_layer"`
	TopK       int `json:"experts_per_token"`
	FFN        int `json:"ffn"`
	SharedFFN  int `json:"shared_ffn"`
	Heads      int `json:"heads"`
	KVHeads    int `json:"kv_heads"`
	HeadDim    int `json:"head_dim"`
	Vocabulary int `json:"vocabulary"`
	Context    int `json:"context"`
}

// MemoryInfo is what one sequence holds, in bytes, with keys and values and the state of DeltaNet in the
// formats named.
type MemoryInfo struct {
	KV       string `json:"kv"`
	State    string `json:"state"`
	Fixed    int64  `json:"fixed_bytes"`
	PerToken int64  `json:"bytes_per_token"`
}

// PartInfo is the tensors of one role.
type PartInfo struct {
	Role    string `json:"role"`
	Tensors int    `json:"tensors"`
	Bytes   int64  `json:"bytes"`
}

// FormatInfo is the tensors of one format.
type FormatInfo struct {
	Format  string `json:"format"`
	Tensors int    `json:"tensors"`
	Bytes   int64  `json:"bytes"`
}

// SliceInfo is how the routed experts divide: what can live on workers.
type SliceInfo struct {
	Layers      int     `json:"layers"` // MTP blocks among them
	Experts     int     `json:"experts"`
	Bytes       int64   `json:"bytes"`
	ExpertBytes int64   `json:"bytes_per_expert"` // the mean; layers may differ in format
	Share       float64 `json:"share_of_weights"`

	List []LayerSlice `json:"list"` // absent where layers cannot be divided into experts
}

// LayerSlice is the routed experts of one layer.
type LayerSlice struct {
	Layer   int      `json:"layer"`
	MTP     bool     `json:"mtp,omitempty"`
	Experts int      `json:"experts"`
	Formats []string `json:"formats"`
	Bytes   int64    `json:"bytes"`
	Hash    string   `json:"hash,omitempty"` // of experts.Slice, in hex; empty unless asked for
}

// TensorInfo is one tensor.
type TensorInfo struct {
	Name   string `json:"name"`
	Format string `json:"format"`
	Dims   []int  `json:"dims"`
	Bytes  int64  `json:"bytes"`
	Role   string `json:"role"`
	File   int    `json:"file,omitempty"` // number of the part that has it, from 1; absent in a whole file
}

// Inspect reads a model file's metadata and tensor list; an empty path means the embedded kvasir-tiny.
// A file that is sound but cannot be run is described as well, with the reason.
func Inspect(path string) (Info, error) {
	return inspect(path, func(*gguf.File, *Info, []*experts.Slice) error { return nil })
}

// InspectHashes is Inspect with the hash of every slice, for which it reads all their weights. It ends
// early, with an error, when ctx does.
func InspectHashes(ctx context.Context, path string) (Info, error) {
	return inspect(path, func(f *gguf.File, info *Info, list []*experts.Slice) error {
		return info.hash(ctx, f, list)
	})
}

func inspect(path string, more func(*gguf.File, *Info, []*experts.Slice) error) (Info, error) {
	f, err := openFile(path)
	if err != nil {
		return Info{}, err
	}
	defer func() { _ = f.Close() }() // read only: nothing is lost
	info := Info{Name: f.Name, Version: f.Version, Bytes: f.Size, Metadata: f.Describe()}
	for _, p := range f.Parts {
		info.Files = append(info.Files, FileInfo{Name: p.Name, Bytes: p.Size, Tensors: p.Tensors})
	}
	if info.Architecture, err = f.StringOr("general.architecture", ""); err != nil {
		info.Architecture = "unknown"
	}
	info.count(f)
	list, err := experts.Slices(f)
	if err == nil {
		info.list(list)
	}
	if c, cerr := examine(f, loadMax); cerr != nil {
		err = cerr
	} else {
		info.shape(c)
	}
	if info.Runs = err == nil; err != nil {
		info.Problem = err.Error()
	}
	return info, more(f, &info, list)
}

// loadMax is the largest file, in bytes, that is loaded only to see whether that goes well.
const loadMax = 1 << 30

// examine returns the shape of a model that can run. A file of up to most bytes is loaded for that; of a
// larger one only what costs neither time nor memory is looked at: formats, metadata, tokenizer and
// template, and not the shapes of dense tensors.
func examine(f *gguf.File, most int64) (*model.Config, error) {
	if err := f.Check(); err != nil {
		return nil, err
	}
	c, err := model.ReadConfig(f)
	if err != nil {
		return nil, err
	}
	tokens, err := loadTokenizer(f, c.Vocab)
	if err != nil {
		return nil, err
	}
	if _, err := loadTemplate(f, tokens); err != nil {
		return nil, err
	}
	if f.Size > most {
		return &c, nil
	}
	profile := ref.DefaultProfile(c.Layers)
	if _, err := model.Load(f, model.Options{Profile: profile}); err != nil {
		return nil, err
	}
	_, err = experts.Load(f, c.Layers, experts.Options{Profile: profile})
	return &c, err
}

// list fills the table of slices.
func (info *Info) list(list []*experts.Slice) {
	if info.Slices == nil {
		return
	}
	for _, s := range list {
		info.Slices.List = append(info.Slices.List, LayerSlice{
			Layer: s.Layer, MTP: s.MTP, Experts: s.Experts, Formats: s.Formats(), Bytes: s.Bytes,
		})
	}
}

// hash fills in the hashes of slices, several at a time.
func (info *Info) hash(ctx context.Context, f *gguf.File, list []*experts.Slice) error {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(list)) {
		wg.Go(func() {
			for i := int(next.Add(1) - 1); i < len(list) && ctx.Err() == nil; i = int(next.Add(1) - 1) {
				h := list[i].Hash(f)
				info.Slices.List[i].Hash = hex.EncodeToString(h[:])
			}
		})
	}
	wg.Wait()
	return ctx.Err()
}

func (info *Info) shape(c *model.Config) {
	s := &ShapeInfo{
		Layers: c.Layers, MTP: c.MTP, Hidden: c.Hidden,
		Experts: c.Experts, TopK: c.TopK, FFN: c.FFN, SharedFFN: c.SharedFFN,
		Heads: c.Heads, KVHeads: c.KVHeads, HeadDim: c.HeadDim,
		Vocabulary: c.Vocab, Context: c.Context,
	}
	for _, r := range c.Recurrent {
		if r {
			s.Recurrent++
		}
	}
	info.Shape = s
	fixed, perToken := c.MemoryPerSequence(model.KVF16, model.StateF32)
	info.Memory = &MemoryInfo{KV: model.KVF16.String(), State: model.StateF32.String(), Fixed: fixed, PerToken: perToken}
}

// count fills the tables of tensors.
func (info *Info) count(f *gguf.File) {
	parts, formats := map[string]*PartInfo{}, map[string]*FormatInfo{}
	kinds := blocks{recurrent: map[string]bool{}, mtp: map[string]bool{}}
	for _, t := range f.Tensors {
		if block, _, ok := strings.Cut(t.Name, "ssm_"); ok {
			kinds.recurrent[block] = true
		}
		if block, _, ok := strings.Cut(t.Name, "nextn."); ok {
			kinds.mtp[block] = true
		}
	}
	experts := SliceInfo{}
	total := int64(0)
	for _, t := range f.Tensors {
		ti := TensorInfo{Name: t.Name, Format: t.Format.String(), Dims: t.Dims, Bytes: int64(len(t.Data)), Role: kinds.role(t.Name)}
		if len(f.Parts) > 1 {
			ti.File = t.Part + 1
		}
		info.Tensors = append(info.Tensors, ti)
		total += ti.Bytes
		if parts[ti.Role] == nil {
			parts[ti.Role] = &PartInfo{Role: ti.Role}
		}
		parts[ti.Role].Tensors++
		parts[ti.Role].Bytes += ti.Bytes
		if formats[ti.Format] == nil {
			formats[ti.Format] = &FormatInfo{Format: ti.Format}
		}
		formats[ti.Format].Tensors++
		formats[ti.Format].Bytes += ti.Bytes
		if ti.Role == roleExperts {
			experts.Bytes += ti.Bytes
			if strings.Contains(t.Name, "_down_") && len(t.Dims) == 3 {
				experts.Layers++
				experts.Experts += t.Dims[2]
			}
		}
	}
	for _, p := range parts {
		info.Parts = append(info.Parts, *p)
	}
	for _, p := range formats {
		info.Formats = append(info.Formats, *p)
	}
	sortByBytes(info.Parts, func(p PartInfo) (int64, string) { return p.Bytes, p.Role })
	sortByBytes(info.Formats, func(p FormatInfo) (int64, string) { return p.Bytes, p.Format })
	if experts.Experts > 0 {
		experts.ExpertBytes = experts.Bytes / int64(experts.Experts)
		experts.Share = float64(experts.Bytes) / float64(total)
		info.Slices = &experts
	}
}

// Roles of tensors, by their names.
const (
	roleExperts = "routed experts"
	roleMTP     = "mtp"
	roleOther   = "other"
)

// blocks are the prefixes "blk.N." of layers that are not like others: with DeltaNet, where attn_qkv and
// attn_gate are its own, and those of multi-token prediction.
type blocks struct{ recurrent, mtp map[string]bool }

// role tells what a tensor is for, from its name.
func (b *blocks) role(name string) string {
	has := func(parts ...string) bool {
		for _, p := range parts {
			if strings.Contains(name, p) {
				return true
			}
		}
		return false
	}
	switch {
	case has("_exps."):
		return roleExperts
	case b.isMTP(name):
		return roleMTP
	case has("_shexp."):
		return "shared experts"
	case has("ffn_gate_inp."):
		return "router"
	case has("token_embd."):
		return "embedding"
	case name == "output.weight":
		return "head"
	case has("ssm_"):
		return "DeltaNet"
	case has("norm."):
		return "norms"
	case has("attn_"):
		if block, _, _ := strings.Cut(name, "attn_"); b.recurrent[block] {
			return "DeltaNet"
		}
		return "attention"
	}
	return roleOther
}

// isMTP reports whether name is of a block of multi-token prediction.
func (b *blocks) isMTP(name string) bool {
	for prefix := range b.mtp {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// sortByBytes sorts a table, the largest first, equal ones by name.
func sortByBytes[T any](list []T, key func(T) (int64, string)) {
	slices.SortFunc(list, func(a, b T) int {
		aBytes, aName := key(a)
		bBytes, bName := key(b)
		return cmp.Or(cmp.Compare(bBytes, aBytes), strings.Compare(aName, bName))
	})
}
