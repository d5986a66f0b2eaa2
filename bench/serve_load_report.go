package bench

import "fmt"

// ServeLoad is what came of three times as many requests as could be answered.
type ServeLoad struct {
	Seconds float64 `json:"seconds"` // of load, all rounds together
	Running int     `json:"running"` // at once, at most
	Waiting int     `json:"waiting"`
	Rounds  int     `json:"rounds"`
	Dropped int     `json:"rounds_dropped"` // of them, because the best before and after differ
	Rate    float64 `json:"requests_per_s"` // that came; the median of rounds, as all that follow
	Best    float64 `json:"best_tokens_per_s"`
	Goodput float64 `json:"tokens_per_s"`
	Share   float64 `json:"share"` // of the best before and after
	Done    int     `json:"done"`
	Refused int     `json:"refused"`
	Unsent  int     `json:"unsent"` // because too many were under way
	Failed  int     `json:"failed"`
	Failure string  `json:"failure,omitempty"` // the first
	Silent  int     `json:"without_retry_after"`

	AtBest ServeWork `json:"work_at_best"`
	Under  ServeWork `json:"work"`

	RefusedP50 float64 `json:"refused_p50_ms,omitempty"`
	RefusedP99 float64 `json:"refused_p99_ms,omitempty"`
	Early      float64 `json:"resident_early_mb,omitempty"` // medians of the first and the second half
	Late       float64 `json:"resident_late_mb,omitempty"`
}

// ServeWork is what tokens were made of, and who had the processor meanwhile.
type ServeWork struct {
	Steps   float64 `json:"steps_per_s"`
	Rows    float64 `json:"rows_per_step"`
	Prompts float64 `json:"prompt_rows_per_step"`
	Server  float64 `json:"server_cores,omitempty"` // busy; absent where they are not told apart
	Client  float64 `json:"client_cores,omitempty"`
}

// noisy reports whether too few rounds are left to judge.
func (x *ServeLoad) noisy() bool { return x.Rounds-x.Dropped < loadKept }

func (x *ServeLoad) words() []string {
	lines := []string{
		fmt.Sprintf("At best %s tokens/s. %s requests/s for %s s in %d parts, each between two looks at the best, of which %d may run and %d wait: %s tokens/s, %s of the best. Medians; %d of %d parts are kept, the machine changed during the others.",
			digits(x.Best), digits(x.Rate), digits(x.Seconds), x.Rounds, x.Running, x.Waiting, digits(x.Goodput), percent(100*x.Share), x.Rounds-x.Dropped, x.Rounds),
		fmt.Sprintf("%d were answered, %d refused within %s ms (median) and %s ms (99 of 100), %d failed, %d were not sent because too many were under way.",
			x.Done, x.Refused, digits(x.RefusedP50), digits(x.RefusedP99), x.Failed, x.Unsent),
		x.AtBest.words("At best") + ". " + x.Under.words("Under load") + ".",
	}
	if x.Failure != "" {
		lines = append(lines, "The first that failed: "+x.Failure)
	}
	if x.Early > 0 {
		lines = append(lines, fmt.Sprintf("%.0f MB were resident in the first half, %.0f MB in the second (medians).", x.Early, x.Late))
	}
	return lines
}

func (w *ServeWork) words(when string) string {
	text := fmt.Sprintf("%s the model took %s steps/s of %s rows, %s of them of prompts", when, digits(w.Steps), digits(w.Rows), digits(w.Prompts))
	if w.Server > 0 {
		text += fmt.Sprintf("; %s cores were busy with it and %s with the client", digits(w.Server), digits(w.Client))
	}
	return text
}
