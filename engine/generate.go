package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"kvasir/engine/chat"
	"kvasir/engine/grammar"
	"kvasir/engine/sample"
	"kvasir/engine/schedule"
	"kvasir/engine/serve"
	"kvasir/engine/tokenizer"
	"kvasir/kernels/vector"
)

// Message is a turn of a conversation.
type Message = chat.Message

// Request asks for continuations of a prompt.
type Request struct {
	Prompt   string
	Chat     bool         // the prompt is a user's turn: put it into the model's chat template
	Messages []Message    // a conversation, in the place of Prompt
	Template chat.Options // of a conversation; Generate is always set
	Tokens   int          // generate at most so many

	Choices  int            // how many continuations; 0: 1
	Sampling *sample.Params // nil: greedy
	Stop     []string       // texts that end a continuation, and are not part of it
	Format   Format
	Calls    serve.Calls // of Template.Tools; a text that has to call has no other format
	Batch    bool        // nobody waits for it: it gives way to those that somebody waits for

	keep  bool             // the last logits of each choice
	taken func(prompt int) // is told the tokens of the prompt once nothing refuses the request; may be nil
}

// Format is a form that the text is held to: one of its fields, or none.
type Format struct {
	Grammar string // in GBNF, llama.cpp's notation
	Schema  []byte // a JSON schema
	JSON    bool   // a JSON object
}

// Result is what came of a request.
type Result struct {
	PromptTokens []int32
	Choices      []Choice
	Prefill      time.Duration // until the first token
	Decode       time.Duration // of all tokens after the first
}

// First is the first choice, empty if there is none.
func (r *Result) First() *Choice {
	if len(r.Choices) == 0 {
		return &Choice{}
	}
	return &r.Choices[0]
}

// Choice is one continuation.
type Choice struct {
	Text     string
	Tokens   []int32        // without the end token
	Stop     string         // StopEnd, StopText or StopLength; empty: it was cut off by an error
	Logprobs []sample.Token // of Tokens, if they were asked for

	steps  int       // tokens chosen, the end token included
	logits []float32 // after the last row, if they are kept
}

// Why a continuation ended.
const (
	StopEnd    = "end"    // the model said so, or the format is complete
	StopText   = "stop"   // a stop text or stop token came
	StopLength = "length" // the asked number of tokens, or the context is full
)

// Piece is a part of the text of a choice, whole characters: what became certain with one token.
type Piece struct {
	Choice int
	Text   string       // may be empty
	Token  sample.Token // the token, unless Last
	Begin  int          // characters of the choice before the token, some of which may be held back
	Last   bool         // after all tokens: what was held back
	Stop   string       // with Last, why the choice ended
	More   bool         // what follows is known already, or there is nothing
	At     time.Time    // when the token was chosen
}

// Text hands the text of each piece to emit.
func Text(emit func(text string) error) func(Piece) error {
	return func(p Piece) error {
		if p.Text == "" {
			return nil
		}
		return emit(p.Text)
	}
}

// Errors of a request, refused before any work.
var (
	ErrEmptyPrompt = errors.New("the prompt is empty; give some text")
	ErrTokens      = errors.New("the number of tokens must be at least 1")
	ErrChoices     = errors.New("the number of choices must be 1 to 128")
)

const maxChoices = 128

// LengthError is returned for a prompt that leaves no room for an answer.
type LengthError struct {
	Tokens, Limit int  // of the prompt; of prompt and answer together
	More          bool // it has more than Tokens: nobody has counted them to the end
	why           string
}

// Error returns one line.
func (e *LengthError) Error() string {
	return fmt.Sprintf("the prompt has %s tokens and %s", e.Count(), e.why)
}

// Count is Tokens in words.
func (e *LengthError) Count() string {
	if e.More {
		return fmt.Sprintf("more than %d", e.Tokens)
	}
	return strconv.Itoa(e.Tokens)
}

// Generate continues a prompt and calls emit with each piece of text as it is made. An error of emit ends
// the generation and is returned. The result holds what was made before an error. PromptTokens is nil if
// the request was refused before any work.
func (e *Engine) Generate(ctx context.Context, r Request, emit func(Piece) error) (Result, error) {
	var res Result
	prompt, list, err := e.prepare(r)
	if err != nil {
		return res, err
	}
	req := schedule.Request{Prompt: prompt, Limit: min(r.Tokens, e.longest-len(prompt))}
	if r.Batch {
		req.Class = schedule.Batch
	}
	for _, c := range list {
		req.Choices = append(req.Choices, c)
	}
	start := time.Now()
	stream, err := e.scheduler.Submit(ctx, req)
	if err != nil {
		return res, err
	}
	defer stream.Cancel()
	res.PromptTokens, res.Choices = prompt, make([]Choice, len(list))
	if r.taken != nil {
		r.taken(len(prompt))
	}
	for {
		event, err := schedule.Event{}, ctx.Err()
		if err == nil {
			event, err = stream.Next(ctx)
		}
		if errors.Is(err, io.EOF) {
			return res, nil
		}
		if err == nil {
			c := list[event.Choice]
			err = c.hear(&res.Choices[event.Choice], event, stream.Ready(), emit)
			res.timed(c.at.Sub(start))
		}
		if err != nil {
			return res, err
		}
	}
}

// timed counts a token that was chosen so long after the beginning.
func (r *Result) timed(after time.Duration) {
	if r.Prefill == 0 {
		r.Prefill = after
	}
	r.Decode = max(r.Decode, after-r.Prefill)
}

// prepare checks a request, and returns its tokens and who chooses those of each continuation.
func (e *Engine) prepare(r Request) (prompt []int32, list []*chooser, err error) {
	prompt, text, err := e.encode(r)
	if err != nil {
		return nil, nil, err
	}
	n := max(r.Choices, 1)
	if r.Choices < 0 || n > maxChoices {
		return nil, nil, ErrChoices
	}
	form, err := e.form(r, text)
	if err != nil {
		return nil, nil, err
	}
	for i := range n {
		c, err := e.newChooser(r, i, prompt, form)
		if err != nil {
			return nil, nil, err
		}
		list = append(list, c)
	}
	return prompt, list, nil
}

// chooser chooses the tokens of one continuation and makes text of them. The scheduler calls Next; what
// that writes is read by hear after the token's event.
type chooser struct {
	e       *Engine
	index   int
	sampler *sample.Sampler
	stream  *tokenizer.Stream
	stops   *sample.Stops
	runes   int             // of all text so far, also of what may yet be a stop text; for Next
	heard   int             // tokens that hear has had
	text    strings.Builder // what it has handed out
	at      time.Time       // when the last of them was chosen
	logits  []float32
	keep    bool
	detail  bool // keep the likeliest tokens of each choice

	mu   sync.Mutex
	made []made // by Next, one a token; under mu
}

// made is what came of one token.
type made struct {
	token sample.Token
	begin int // characters of the text before it
	text  string
	stop  string // why it is the last; empty: it is not
	at    time.Time
}

func (e *Engine) newChooser(r Request, index int, prompt []int32, form *grammar.Grammar) (*chooser, error) {
	p := sample.Defaults()
	if r.Sampling != nil {
		p = *r.Sampling
	}
	o := sample.Options{Choice: index, Prompt: prompt, Vocab: e.model.Vocab, Ops: vector.Active()}
	c := &chooser{e: e, index: index, stream: e.tokens.Stream(false), keep: r.keep, detail: p.Logprobs}
	var err error
	if form != nil {
		vocab, err := e.vocab()
		if err != nil {
			return nil, err
		}
		if o.Constraint, err = vocab.Matcher(form); err != nil {
			return nil, err
		}
	}
	if c.sampler, err = sample.New(p, o); err != nil {
		return nil, err
	}
	c.stops, err = sample.NewStops(r.Stop)
	return c, err
}

// Next is schedule.Chooser's.
func (c *chooser) Next(logits []float32, pos int) (int32, bool, error) {
	if c.keep {
		c.logits = append(c.logits[:0], logits...)
	}
	t, err := c.sampler.Next(logits, pos)
	if err != nil {
		return 0, false, err
	}
	if c.detail {
		t.Top = append([]sample.Candidate(nil), t.Top...)
	}
	m := made{token: t, begin: c.runes, at: time.Now()}
	switch {
	case c.e.tokens.IsEnd(t.ID):
		m.stop = StopEnd
	case t.Stop:
		m.stop = StopText
	default:
		var found bool
		text := c.stream.Push(t.ID)
		c.runes += utf8.RuneCountInString(text)
		if m.text, found = c.stops.Push(text); found {
			m.stop = StopText
		} else if c.sampler.Done() {
			m.stop = StopEnd
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.made = append(c.made, m)
	return t.ID, m.stop != "", nil
}

// hear adds what came of one token to a choice, and hands out its text. more is that of the event's last piece.
func (c *chooser) hear(to *Choice, event schedule.Event, more bool, emit func(Piece) error) error {
	c.mu.Lock()
	m := c.made[c.heard]
	c.mu.Unlock()
	c.heard++
	c.at = m.at
	to.steps++
	isText := !m.token.Stop && !c.e.tokens.IsEnd(m.token.ID)
	if isText {
		to.Tokens = append(to.Tokens, m.token.ID)
		if c.detail {
			to.Logprobs = append(to.Logprobs, m.token)
		}
		c.text.WriteString(m.text)
		to.Text = c.text.String()
		if err := emit(Piece{Choice: c.index, Text: m.text, Token: m.token, Begin: m.begin, More: more || event.Final != schedule.More, At: m.at}); err != nil {
			return err
		}
	}
	if event.Final == schedule.More {
		return nil
	}
	to.logits = c.logits
	if to.Stop = m.stop; to.Stop == "" {
		to.Stop = StopLength
	}
	rest := ""
	if !isText || m.stop != StopText { // what was held back was no stop text
		text, found := c.stops.Push(c.stream.Flush())
		if rest = text; found {
			to.Stop = StopText
		} else {
			rest += c.stops.Flush()
		}
	}
	c.text.WriteString(rest)
	to.Text = c.text.String()
	return emit(Piece{Choice: c.index, Text: rest, Last: true, Stop: to.Stop, More: more, At: m.at})
}

// encode checks a request and returns its tokens, and the conversation that they are of.
func (e *Engine) encode(r Request) (ids []int32, text chat.Prompt, err error) {
	turns := r.turns()
	if r.Prompt == "" && len(r.Messages) == 0 {
		return nil, text, ErrEmptyPrompt
	}
	if r.Tokens < 1 {
		return nil, text, ErrTokens
	}
	if at := invalidUTF8(r.Prompt); at >= 0 {
		return nil, text, fmt.Errorf("the prompt is not valid UTF-8 at byte %d (0x%02x); give text in UTF-8", at, r.Prompt[at])
	}
	ids, text, more, err := e.tokenize(r, turns)
	if err != nil {
		return nil, text, err
	}
	if bos, add := e.tokens.BOS(); add && turns == nil {
		ids = append([]int32{bos}, ids...)
	}
	n := len(ids)
	if more {
		n = e.counted()
	}
	switch {
	case n >= e.model.Context:
		return nil, text, &LengthError{n, e.model.Context, more, fmt.Sprintf("%s takes %d, answer included; shorten it", e.name, e.model.Context)}
	case n >= e.longest:
		return nil, text, &LengthError{n, e.longest, more,
			fmt.Sprintf("there is memory for %d, answer included; shorten it, or give more memory", e.longest)}
	}
	return ids, text, nil
}

// counted is how many tokens of a prompt are counted before it is refused: enough to tell by how much it is
// usually too long, and not all of a text that nobody could take.
func (e *Engine) counted() int { return 2 * e.model.Context }

// tokenize returns the tokens of a conversation and its text, or else the tokens of the prompt as plain text.
// What a message holds never becomes a control token. With more there are more than e.counted, and none.
func (e *Engine) tokenize(r Request, turns []Message) (ids []int32, p chat.Prompt, more bool, err error) {
	if turns == nil {
		ids, more, err = e.tokens.EncodeMost(r.Prompt, e.counted())
		return ids, p, more, err
	}
	if p, err = e.render(r, turns); err != nil {
		return nil, p, false, err
	}
	ids, more, err = e.tokens.EncodeChatMost(p.Text, p.Plain, e.counted())
	return ids, p, more, err
}

// turns is the conversation; nil if the request is for plain text.
func (r *Request) turns() []Message {
	switch {
	case len(r.Messages) > 0:
		return r.Messages
	case r.Chat:
		return []Message{{Role: "user", Content: r.Prompt}}
	}
	return nil
}

// render puts a conversation into the model's template.
func (e *Engine) render(r Request, turns []Message) (chat.Prompt, error) {
	o := r.Template
	o.Generate, o.Controls = true, e.tokens.Controls
	if o.Now == nil {
		o.Now = time.Now
	}
	p, err := e.template.Render(turns, o)
	if err != nil {
		return p, fmt.Errorf("chat template: %w", err)
	}
	return p, nil
}

// Reply returns what splits an answer to a conversation into reasoning, content and calls.
func (e *Engine) Reply(r Request) (*chat.Reply, error) {
	o, err := e.replyOptions(r)
	if err != nil {
		return nil, err
	}
	return chat.NewReply(o), nil
}

func (e *Engine) replyOptions(r Request) (chat.ReplyOptions, error) {
	p, err := e.render(r, r.turns())
	return chat.ReplyOptions{Thinking: p.Thinks(), Tools: r.Template.Tools}, err
}
