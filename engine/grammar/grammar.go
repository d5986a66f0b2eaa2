// Package grammar holds generated text to a grammar: it says which tokens may come next.
//
// A grammar is written in llama.cpp's GBNF (Parse) or made from a JSON Schema (FromSchema, JSON). It
// is compiled to an automaton over bytes with a stack, so a token may end in the middle of a UTF-8
// character. What a Matcher knows of the text so far is a set of stacks, a State; the States that
// come up and the steps between them are kept, as a lazily built deterministic automaton, and the
// tokens that each allows are found by walking a tree of the vocabulary's tokens and kept too.
//
// What holds, and where it is checked:
//
//  1. From every State the text can be completed: rules that match nothing and left recursion are
//     refused, and a way that needs more nesting than maxDepth is not taken (program.settle).
//  2. The mask holds exactly the tokens whose bytes lead from the State to another one, and the end
//     tokens when the text is complete (TestMaskEqualsTryingEveryToken).
//  3. What is allowed depends on the grammar, the vocabulary and the text alone, never on what is
//     kept; so do errors.
//  4. Memory is bounded: source, rules, nodes, stacks of a State, nesting, and what is kept.
//
// A Grammar and a Vocab are safe for concurrent use, a Matcher is not.
package grammar

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
)

// Limits. They bound time and memory for grammars and schemas that come with a request.
const (
	MaxSource = 256 << 10 // bytes of a grammar or a schema
	MaxRepeat = 1 << 20   // the m and n of {m,n}, minItems, maxLength and the like

	maxRules   = 4096
	maxNodes   = 1 << 18
	maxNesting = 200     // groups in a grammar, objects in a schema
	maxDepth   = 1000    // recursive rules under way at once
	maxStacks  = 4096    // stacks of a State
	maxVisits  = 1 << 15 // configurations looked at in one step
	maxKept    = 8 << 20 // bytes of States kept, about
	maxMasks   = 8 << 20 // bytes of masks kept for a grammar and a vocabulary, about
	maxWork    = 8 << 20 // stacks beyond freeStacks a State, summed over the walk for one mask
	freeStacks = 64
)

var (
	// ErrSyntax is the reason for every grammar that Parse refuses and for schemas that are not JSON.
	ErrSyntax = errors.New("grammar: bad syntax")
	// ErrSchema is the reason for schemas that cannot be kept to: a keyword that is not supported, a
	// value that a keyword cannot have, or a contradiction.
	ErrSchema = errors.New("grammar: schema refused")
	// ErrLimit is returned when a grammar is too big, or too ambiguous to follow.
	ErrLimit = errors.New("grammar: beyond a limit")
	// ErrToken is returned by Accept for a token that may not come next.
	ErrToken = errors.New("grammar: token not allowed here")
	// ErrStuck is returned when no token of the vocabulary can continue the text.
	ErrStuck = errors.New("grammar: no token fits")
	// ErrVocab is the reason for vocabularies that NewVocab refuses.
	ErrVocab = errors.New("grammar: bad vocabulary")
)

// Grammar is a compiled grammar, with the States seen so far.
type Grammar struct {
	prog *program

	mu  sync.Mutex // held while a State is made
	gen atomic.Pointer[generation]

	masksMu sync.Mutex
	masks   map[*Vocab]*masks
}

// build compiles the rules of a grammar. The text begins with rule 0.
func build(rules []*rule) (*Grammar, error) {
	prog, err := compile(rules)
	if err != nil {
		return nil, err
	}
	g := &Grammar{prog: prog, masks: make(map[*Vocab]*masks)}
	g.gen.Store(newGeneration())
	if s := g.start(); s.over {
		return nil, fmt.Errorf("%w: more than %d ways to begin", ErrLimit, maxStacks)
	}
	return g, nil
}
