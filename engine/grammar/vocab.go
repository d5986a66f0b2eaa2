package grammar

import (
	"bytes"
	"fmt"
	"math"
	"slices"
)

// maxToken is how many bytes a token may have.
const maxToken = 1 << 14

// Vocab is the tokens of a model as a tree of bytes. It does not change.
type Vocab struct {
	size    int
	text    []byte   // bytes of all tokens, by id
	at      []uint32 // where in text the token begins; one more than there are tokens
	ends    []int32
	isEnd   []uint64
	ids     []int32 // of the tokens in the tree, by their bytes
	tree    []leaf
	longest int // bytes of a token
}

// leaf is a node of the tree; children follow it.
type leaf struct {
	end   int32 // index of the first leaf that is not below this one
	first int32 // ids[first:] up to that of the next leaf are the tokens that end here
	depth uint16
	b     byte
}

// NewVocab builds the tree of a vocabulary of size tokens. bytesOf gives what a token stands for, as
// bytes, which need not be whole characters; nothing for control tokens, which a grammar never
// allows. ends are the tokens that end a text: they are allowed where it is complete, and stand for
// nothing here. It takes some 100 ms for 150,000 tokens and is to be done once a model.
func NewVocab(size int, bytesOf func(id int32) []byte, ends []int32) (*Vocab, error) {
	if size < 1 || size > math.MaxInt32/2 {
		return nil, fmt.Errorf("%w: %d tokens", ErrVocab, size)
	}
	v := &Vocab{size: size, at: make([]uint32, size+1), isEnd: make([]uint64, (size+63)/64)}
	for _, id := range ends {
		if id < 0 || int(id) >= size {
			return nil, fmt.Errorf("%w: end token %d of %d tokens", ErrVocab, id, size)
		}
		if !has(v.isEnd, id) {
			v.ends = append(v.ends, id)
			set(v.isEnd, id)
		}
	}
	if len(v.ends) == 0 {
		return nil, fmt.Errorf("%w: no token ends a text", ErrVocab)
	}
	for id := range int32(size) {
		if !has(v.isEnd, id) {
			b := bytesOf(id)
			if len(b) > maxToken {
				return nil, fmt.Errorf("%w: token %d has %d bytes, more than %d", ErrVocab, id, len(b), maxToken)
			}
			if len(v.text)+len(b) > math.MaxInt32 {
				return nil, fmt.Errorf("%w: tokens have more than %d bytes", ErrVocab, math.MaxInt32)
			}
			v.text = append(v.text, b...)
			v.longest = max(v.longest, len(b))
			if len(b) > 0 {
				v.ids = append(v.ids, id)
			}
		}
		v.at[id+1] = uint32(len(v.text))
	}
	slices.SortStableFunc(v.ids, func(a, b int32) int { return bytes.Compare(v.token(a), v.token(b)) })
	v.grow()
	return v, nil
}

func has(bits []uint64, id int32) bool { return bits[id>>6]>>(id&63)&1 != 0 }
func set(bits []uint64, id int32)      { bits[id>>6] |= 1 << (id & 63) }

func (v *Vocab) token(id int32) []byte { return v.text[v.at[id]:v.at[id+1]] }

// grow builds the tree from the sorted tokens. The last leaf only ends the tokens of the one before.
func (v *Vocab) grow() {
	var path []int32 // leaves from the root to the last token
	var last []byte
	closeTo := func(depth int) {
		for len(path) > depth {
			v.tree[path[len(path)-1]].end = int32(len(v.tree))
			path = path[:len(path)-1]
		}
	}
	for i, id := range v.ids {
		token := v.token(id)
		common := 0
		for common < len(last) && common < len(token) && last[common] == token[common] {
			common++
		}
		closeTo(common)
		for d := common; d < len(token); d++ {
			path = append(path, int32(len(v.tree)))
			v.tree = append(v.tree, leaf{first: int32(i), depth: uint16(d + 1), b: token[d]})
		}
		last = token
	}
	closeTo(0)
	v.tree = append(v.tree, leaf{first: int32(len(v.ids)), end: int32(len(v.tree) + 1)})
}
