package chat

import (
	"fmt"
	"strings"

	"github.com/nikolalohinski/gonja/v2/exec"
	"github.com/nikolalohinski/gonja/v2/nodes"
	"github.com/nikolalohinski/gonja/v2/tokens"
)

// The tags that gonja does not do as this package needs them. Each is a node of the parsed
// template.

// text is what stands between tags, or, without data, the beginning of a loop's body: it counts.
type text struct {
	at   *tokens.Token
	data *nodes.Data
}

func (n *text) Position() *tokens.Token { return n.at }
func (n *text) String() string          { return "text" }

// Execute implements exec.ControlStructure.
func (n *text) Execute(r *exec.Renderer, _ *nodes.ControlStructureBlock) error {
	cost := stepCost
	if n.data != nil {
		cost += len(n.data.Data.Val)
	}
	state := runOf(r.Environment)
	if err := state.spend(cost); err != nil {
		return state.fail(n.at.Line, err)
	}
	if n.data == nil {
		return nil
	}
	_, err := r.Visit(n.data)
	return err
}

type generation struct {
	at   *tokens.Token
	body *nodes.Wrapper
}

func (n *generation) Position() *tokens.Token { return n.at }
func (n *generation) String() string          { return "generation" }

// Execute implements exec.ControlStructure.
func (n *generation) Execute(r *exec.Renderer, _ *nodes.ControlStructureBlock) error {
	return r.ExecuteIfWrapper(n.body)
}

type macroBlock struct{ *nodes.Macro }

// Execute implements exec.ControlStructure.
func (n *macroBlock) Execute(r *exec.Renderer, _ *nodes.ControlStructureBlock) error {
	f, err := exec.MacroNodeToFunc(n.Macro, r)
	if err != nil {
		return err
	}
	r.Environment.Context.Set(n.Name, macro{n.Name, f})
	return nil
}

// set is {% set name = value %} or, with a body, {% set name %}…{% endset %}. With on, name is an
// attribute of the namespace that on is.
type set struct {
	at    *tokens.Token
	on    nodes.Expression
	name  string
	value nodes.Expression
	body  *nodes.Wrapper
}

func (n *set) Position() *tokens.Token { return n.at }
func (n *set) String() string          { return "set " + n.name }

// Execute implements exec.ControlStructure.
func (n *set) Execute(r *exec.Renderer, _ *nodes.ControlStructureBlock) error {
	value, err := n.evaluate(r)
	if err != nil {
		return err
	}
	if n.on == nil {
		r.Environment.Context.Set(n.name, value)
		return nil
	}
	on := r.Eval(n.on)
	if on.IsError() {
		return on
	}
	ns, ok := plain(on).(*namespace)
	if !ok {
		return runOf(r.Environment).fail(n.at.Line,
			fmt.Errorf("cannot set %s of %s: only a namespace changes", n.name, kind(plain(on))))
	}
	ns.vars[n.name] = value
	return nil
}

func (n *set) evaluate(r *exec.Renderer) (any, error) {
	if n.body != nil {
		var out strings.Builder
		sub := r.Inherit()
		sub.Output = &out
		if err := sub.ExecuteWrapper(n.body); err != nil {
			return nil, err
		}
		return out.String(), nil
	}
	v := r.Eval(n.value)
	if v.IsError() {
		return nil, v
	}
	return plain(v), nil
}
