package engine

import (
	"cmp"
	"slices"
	"strings"

	"kvasir/engine/gguf"
	"kvasir/engine/model"
)

// Info is what a model file holds.
type Info struct {
	Name         string `json:"name"`
	Architecture string `json:"architecture"`
	Version      uint32 `json:"gguf_version"`
	Bytes        int64  `json:"bytes"`

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

// MemoryInfo is what one sequence holds, in bytes.
type MemoryInfo struct {
	Fixed    int64 `json:"fixed_bytes"`
	PerToken int64 `json:"bytes_per_token"`
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
}

// TensorInfo is one tensor.
type TensorInfo struct {
	Name   string `json:"name"`
	Format string `json:"format"`
	Dims   []int  `json:"dims"`
	Bytes  int64  `json:"bytes"`
	Role   string `json:"role"`
}

// Inspect reads a model file's metadata and tensor list; an empty path means the embedded kvasir-tiny.
// A file that is sound but cannot be run is described as well, with the reason.
func Inspect(path string) (Info, error) {
	f, err := openFile(path)
	if err != nil {
		return Info{}, err
	}
	defer func() { _ = f.Close() }() // read only: nothing is lost
	info := Info{Name: f.Name, Version: f.Version, Bytes: f.Size, Metadata: f.Describe()}
	if info.Architecture, err = f.StringOr("general.architecture", ""); err != nil {
		info.Architecture = "unknown"
	}
	info.count(f)
	if e, err := assemble(f, defaultProfile); err != nil {
		info.Problem = err.Error()
	} else {
		info.Runs = true
		info.shape(&e.model.Config)
	}
	return info, nil
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
	info.Memory = &MemoryInfo{Fixed: fixed, PerToken: perToken}
}

// count fills the tables of tensors.
func (info *Info) count(f *gguf.File) {
	parts, formats := map[string]*PartInfo{}, map[string]*FormatInfo{}
	recurrent := map[string]bool{} // "blk.N." of layers with DeltaNet, where attn_qkv and attn_gate are its own
	for _, t := range f.Tensors {
		if block, _, ok := strings.Cut(t.Name, "ssm_"); ok {
			recurrent[block] = true
		}
	}
	experts := SliceInfo{}
	total := int64(0)
	for _, t := range f.Tensors {
		ti := TensorInfo{Name: t.Name, Format: t.Format.String(), Dims: t.Dims, Bytes: int64(len(t.Data)), Role: role(t.Name, recurrent)}
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

// role tells what a tensor is for, from its name and the prefixes of the recurrent layers.
func role(name string, recurrent map[string]bool) string {
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
	case has("nextn."):
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
		if block, _, _ := strings.Cut(name, "attn_"); recurrent[block] {
			return "DeltaNet"
		}
		return "attention"
	}
	return roleOther
}

// sortByBytes sorts a table, the largest first, equal ones by name.
func sortByBytes[T any](list []T, key func(T) (int64, string)) {
	slices.SortFunc(list, func(a, b T) int {
		aBytes, aName := key(a)
		bBytes, bName := key(b)
		return cmp.Or(cmp.Compare(bBytes, aBytes), strings.Compare(aName, bName))
	})
}
