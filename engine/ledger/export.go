package ledger

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"kvasir/wire/seal"
)

// ErrBadExport: a file is no export of a wallet, or somebody has changed it.
var ErrBadExport = errors.New("ledger: not an export as a gateway has signed it")

// Account is what a worker has earned, report by report. Exported, it is signed by the gateway, so that
// whoever knows the gateway's key can check it. As JSON:
//
//	{"account": ACCOUNT, "signature": 64 bytes in base64, domain "wallet 1", over ACCOUNT without white space}
//
// As CSV: a head of "# NAME VALUE" lines, a line of names, a line a report, and at last "# signature", which
// is over all bytes before it, in domain "wallet csv 2". Version 1, of which files are still read, knew no class.
//
// One that is partial has what was signed from a time on, and the sums of what was signed before. It is signed
// in domain "wallet 2", as CSV of version 3 in "wallet csv 3": no program takes it for all.
type Account struct {
	Gateway seal.PublicKey `json:"gateway"` // who signs
	Worker  seal.PublicKey `json:"worker"`
	At      time.Time      `json:"at"` // of the export, whole seconds
	Partial bool           `json:"partial,omitempty"`
	Since   time.Time      `json:"since,omitzero"` // from when on it has reports, where it is partial
	Sums                   // of the reports that it has
	Before  Sums           `json:"before,omitzero"` // of those before Since, as they are at the time of the export
	Lines   []Line         `json:"reports"`         // oldest first
}

// Sums are sums of reports, by what has become of them.
type Sums struct {
	Pending NKVR `json:"pending_nkvr"`
	Settled NKVR `json:"settled_nkvr"`
	Voided  NKVR `json:"voided_nkvr"`
	Waiting NKVR `json:"waiting_nkvr"` // beyond what the backbone may owe
}

// Line is a report in an Account.
type Line struct {
	Time     time.Time      `json:"time"`
	Backbone seal.PublicKey `json:"backbone"`
	Session  SessionID      `json:"session"`
	Report   int64          `json:"report"`
	Picks    int64          `json:"picks"`
	NKVR     NKVR           `json:"nkvr"`
	State    string         `json:"state"`           // pending, settled, voided, waiting
	Class    string         `json:"class,omitempty"` // by which rows are compared: exact, close; "": by nobody
}

// MaxLines is the most lines of an Account.
const MaxLines = 1 << 20

const csvEnd = "# signature "

// jsonDomain is that of the signature of JSON.
func (a *Account) jsonDomain() string {
	if a.Partial {
		return "wallet 2"
	}
	return "wallet 1"
}

// csvForm is a version of the CSV.
type csvForm struct {
	title, domain string
	fields        int
	partial       bool
}

// csvForms are the versions: the present one, that of what is partial, and older ones.
var csvForms = []csvForm{
	{"# kvasir wallet 2\n", "wallet csv 2", 8, false},
	{"# kvasir wallet 3\n", "wallet csv 3", 8, true},
	{"# kvasir wallet 1\n", "wallet csv 1", 7, false},
}

// Account returns what a worker has earned, with the reports that were signed from a time on; the zero time is
// that of all. It is what the books say: see Proven.
func (w *Wallet) Account(ctx context.Context, worker seal.PublicKey, since time.Time) (Account, error) {
	return w.account(ctx, w.file.db, worker, since)
}

func (w *Wallet) account(ctx context.Context, q querier, worker seal.PublicKey, since time.Time) (a Account, err error) {
	a = Account{Worker: worker, Lines: []Line{}}
	from := max(since.UnixMilli(), 0)
	if from > 0 {
		a.Partial, a.Since = true, time.UnixMilli(from).UTC()
	}
	err = w.file.eachOf(ctx, q, func(scan func(...any) error) error {
		var l Line
		var session string
		var at int64
		var signed []byte
		if err := scan(&at, keyColumn{&l.Backbone}, &session, &l.Report, &l.Picks, &l.NKVR, &l.State, &signed); err != nil {
			return err
		}
		if at < from {
			return a.Before.add(&l)
		}
		if r, err := Parse(signed); err == nil { // else it is damaged, which Verify tells
			l.Class = r.Class()
		}
		if l.Session, err = ParseSessionID(session); err != nil {
			return fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		if len(a.Lines) == MaxLines {
			return fmt.Errorf("ledger: more than %d reports; export from a later time on", MaxLines)
		}
		l.Time = time.UnixMilli(at).UTC()
		a.Lines = append(a.Lines, l)
		return a.add(&l)
	}, `SELECT at, backbone, session, sequence, picks, nkvr,
		CASE WHEN verdict <> 'voided' AND funded = 0 THEN 'waiting' ELSE verdict END, signed
		FROM reports WHERE worker = $1 ORDER BY id`, worker.String())
	return a, err
}

// add adds a line to the sums.
func (s *Sums) add(l *Line) error {
	to := s.of(l.State)
	if to == nil || l.NKVR < 0 {
		return fmt.Errorf("%w: a report that is %q, of %d nKVR", ErrBadExport, l.State, int64(l.NKVR))
	}
	sum, err := add(*to, l.NKVR)
	*to = sum
	return err
}

// of is the sum of a state; nil: there is no such state.
func (s *Sums) of(state string) *NKVR {
	switch state {
	case "pending":
		return &s.Pending
	case "settled":
		return &s.Settled
	case "voided":
		return &s.Voided
	case "waiting":
		return &s.Waiting
	}
	return nil
}

// states are what a report may be, in the order in which sums stand in CSV.
var states = []string{"pending", "settled", "voided", "waiting"}

// exported is an Account as JSON.
type exported struct {
	Account   json.RawMessage `json:"account"`
	Signature []byte          `json:"signature"`
}

// JSON returns the account as JSON, signed by the gateway.
func (a Account) JSON(key seal.Key, at time.Time) ([]byte, error) {
	a.Gateway, a.At = key.Public(), at.UTC().Truncate(time.Second)
	body, err := json.Marshal(a)
	if err != nil {
		return nil, err
	}
	text, err := json.MarshalIndent(exported{body, key.Sign(a.jsonDomain(), body)}, "", "  ")
	return append(text, '\n'), err
}

// CSV returns the account as CSV, signed by the gateway.
func (a Account) CSV(key seal.Key, at time.Time) ([]byte, error) {
	a.Gateway, a.At = key.Public(), at.UTC().Truncate(time.Second)
	var b bytes.Buffer
	form := &csvForms[slices.IndexFunc(csvForms, func(f csvForm) bool { return f.partial == a.Partial })]
	b.WriteString(form.title)
	fmt.Fprintf(&b, "# gateway %s\n# worker %s\n# at %s\n", a.Gateway, a.Worker, a.At.Format(time.RFC3339))
	if a.Partial {
		fmt.Fprintf(&b, "# partial true\n# since %s\n", a.Since.Format(time.RFC3339Nano))
		a.Before.csv(&b, "before_")
	}
	a.csv(&b, "")
	w := csv.NewWriter(&b)
	_ = w.Write([]string{"time", "backbone", "session", "report", "picks", "nkvr", "state", "class"}) // Flush tells
	for _, l := range a.Lines {
		_ = w.Write([]string{
			l.Time.Format(time.RFC3339Nano), l.Backbone.String(), l.Session.String(), strconv.FormatInt(l.Report, 10),
			strconv.FormatInt(l.Picks, 10), strconv.FormatInt(int64(l.NKVR), 10), l.State, l.Class,
		})
	}
	w.Flush()
	signature := base64.StdEncoding.EncodeToString(key.Sign(form.domain, b.Bytes()))
	b.WriteString(csvEnd + signature + "\n")
	return b.Bytes(), w.Error()
}

// csv writes sums into the head.
func (s *Sums) csv(b *bytes.Buffer, prefix string) {
	for _, state := range states {
		fmt.Fprintf(b, "# %s%s_nkvr %d\n", prefix, state, int64(*s.of(state)))
	}
}

// VerifyExport checks what JSON or CSV returned: the signature of the gateway that it names, and the sums.
// Whether that gateway is to be believed, its key says.
func VerifyExport(data []byte) (a Account, err error) {
	form := slices.IndexFunc(csvForms, func(f csvForm) bool { return bytes.HasPrefix(data, []byte(f.title)) })
	if form >= 0 {
		a, err = csvForms[form].verify(data)
	} else {
		a, err = verifyJSON(data)
	}
	if err != nil {
		return Account{}, err
	}
	var sum Account
	for i := range a.Lines {
		if err := sum.add(&a.Lines[i]); err != nil {
			return Account{}, err
		}
	}
	if a.Partial == a.Since.IsZero() || !a.Partial && a.Before != (Sums{}) {
		return Account{}, fmt.Errorf("%w: it is partial, or it is not", ErrBadExport)
	}
	if sum.Sums != a.Sums {
		return Account{}, fmt.Errorf("%w: the sums are not those of the reports", ErrBadExport)
	}
	return a, nil
}

func verifyJSON(data []byte) (a Account, err error) {
	var e exported
	if err := json.Unmarshal(data, &e); err != nil || len(e.Account) == 0 {
		return a, fmt.Errorf("%w: neither CSV nor JSON of a wallet", ErrBadExport)
	}
	var body bytes.Buffer
	err = json.Compact(&body, e.Account)
	if err == nil {
		err = json.Unmarshal(body.Bytes(), &a)
	}
	if err != nil {
		return a, fmt.Errorf("%w: %w", ErrBadExport, err)
	}
	if !a.Gateway.Verify(a.jsonDomain(), body.Bytes(), e.Signature) {
		return a, fmt.Errorf("%w: the signature does not fit", ErrBadExport)
	}
	return a, nil
}

func (f *csvForm) verify(data []byte) (a Account, err error) {
	cut := bytes.LastIndex(data, []byte("\n"+csvEnd)) + 1
	if cut == 0 {
		return a, fmt.Errorf("%w: it has no signature", ErrBadExport)
	}
	body, last := data[:cut], bytes.TrimSpace(data[cut+len(csvEnd):])
	signature, err := base64.StdEncoding.DecodeString(string(last))
	if err != nil {
		return a, fmt.Errorf("%w: %w", ErrBadExport, err)
	}
	rest := body[len(f.title):]
	head := map[string]string{}
	for bytes.HasPrefix(rest, []byte("# ")) {
		line, after, _ := bytes.Cut(rest, []byte("\n"))
		name, value, _ := bytes.Cut(line[2:], []byte(" "))
		head[string(name)], rest = string(value), after
	}
	if a.Gateway, err = seal.ParsePublicKey(head["gateway"]); err != nil {
		return a, fmt.Errorf("%w: %w", ErrBadExport, err)
	}
	if !a.Gateway.Verify(f.domain, body, signature) {
		return a, fmt.Errorf("%w: the signature does not fit", ErrBadExport)
	}
	if err := a.parse(head, rest, f); err != nil {
		return a, fmt.Errorf("%w: %w", ErrBadExport, err)
	}
	return a, nil
}

// parse reads CSV that a gateway has signed.
func (a *Account) parse(head map[string]string, rest []byte, f *csvForm) (err error) {
	var errs []error
	number := func(text string) int64 {
		n, err := strconv.ParseInt(text, 10, 64)
		errs = append(errs, err)
		return n
	}
	a.Worker, err = seal.ParsePublicKey(head["worker"])
	errs = append(errs, err)
	a.At, err = time.Parse(time.RFC3339, head["at"])
	errs = append(errs, err)
	if a.Partial = f.partial; a.Partial {
		a.Since, err = time.Parse(time.RFC3339Nano, head["since"])
		errs = append(errs, err)
	}
	for _, state := range states {
		*a.of(state) = NKVR(number(head[state+"_nkvr"]))
		if a.Partial {
			*a.Before.of(state) = NKVR(number(head["before_"+state+"_nkvr"]))
		}
	}
	r := csv.NewReader(bytes.NewReader(rest))
	r.FieldsPerRecord = f.fields
	rows, err := r.ReadAll()
	if err := errors.Join(append(errs, err)...); err != nil || len(rows) == 0 {
		return errors.Join(err, errors.New("a line is wrong"))
	}
	a.Lines = make([]Line, len(rows)-1)
	errs = nil
	for i, row := range rows[1:] {
		l := &a.Lines[i]
		l.Time, err = time.Parse(time.RFC3339Nano, row[0])
		errs = append(errs, err)
		l.Backbone, err = seal.ParsePublicKey(row[1])
		errs = append(errs, err)
		l.Session, err = ParseSessionID(row[2])
		errs = append(errs, err)
		l.Report, l.Picks, l.NKVR, l.State = number(row[3]), number(row[4]), NKVR(number(row[5])), row[6]
		if f.fields > 7 {
			l.Class = row[7]
		}
		if err := errors.Join(errs...); err != nil {
			return err
		}
		errs = errs[:0]
	}
	return nil
}
