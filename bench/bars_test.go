package bench

import "testing"

// A bar is set for some work: of less of it a figure is told, and neither met nor missed.
func TestBarsOfOtherWorkAreReported(t *testing.T) {
	a := &AuditReport{Results: []AuditResult{{Cost: 3}, {Cost: 3}, {Cost: 3}}}
	for usual, want := range map[bool]string{true: missed, false: reported} {
		if b := a.judge(usual); b.Verdict != want {
			t.Errorf("audit, usual %v: %+v, want %s", usual, b, want)
		}
		p := &wirePoint{bars: []wireBar{{of: ofBaseline, against: 0, want: 4}}}
		v := judgeWire(p, []WireResult{{XVs: 1, Rounds: wireRoundsLeast}}, usual)
		if len(v) != 1 || v[0].Verdict != want {
			t.Errorf("wire, usual %v: %+v, want %s", usual, v, want)
		}
	}
	if QuickAudit().Layer.usual() || !DefaultAudit().Layer.usual() {
		t.Error("the usual layer is that of DefaultAudit, and no other")
	}
}
