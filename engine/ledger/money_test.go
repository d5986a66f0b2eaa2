package ledger

import (
	"math"
	"testing"
)

// The example of the design document: 13 dispatches of one token, top-8, hidden 3072.
func TestRewardOfExampleIsExact(t *testing.T) {
	bytes, err := OutputBytes(13*8, 3072)
	must(t, err)
	reward, err := Reward(bytes)
	must(t, err)
	if bytes != 1_277_952 || FormatUnits(bytes) != "1.277952" || reward != 8_945_664 || reward.String() != "0.00895 KVR" {
		t.Fatalf("%d bytes, %s units, %d nKVR, %s", bytes, FormatUnits(bytes), int64(reward), reward)
	}
}

func TestAmountIsShown(t *testing.T) {
	for _, c := range []struct {
		nkvr NKVR
		want string
	}{
		{0, "0.00000 KVR"},
		{1, "0.000000001 KVR"},
		{51_200, "0.0000512 KVR"},
		{51_250_000, "0.05125 KVR"},
		{999_999, "0.001000 KVR"},
		{9_999_999, "0.01000 KVR"},
		{8_944_999, "0.00894 KVR"},
		{8_945_000, "0.00895 KVR"},
		{-8_945_664, "-0.00895 KVR"},
		{7 * KVR / 1000, "0.00700 KVR"},
		{123_456_785_001, "123.45679 KVR"},
		{999_999_995_000, "1000.00000 KVR"},
		{math.MaxInt64, "9223372036.85478 KVR"},
		{math.MinInt64, "-9223372036.85478 KVR"},
	} {
		if got := c.nkvr.String(); got != c.want {
			t.Errorf("%d nKVR: %s, want %s", int64(c.nkvr), got, c.want)
		}
	}
	if got := FormatUnits(-1_000_001); got != "-1.000001" {
		t.Errorf("units: %s", got)
	}
}

func TestAmountsDoNotOverflow(t *testing.T) {
	for _, c := range []struct {
		picks  int64
		hidden int
		want   error
	}{
		{0, 1, nil},
		{math.MaxInt64 / 4, 1, nil},
		{math.MaxInt64/4 + 1, 1, ErrOverflow},
		{1, math.MaxInt64 / 4, nil},
		{1, math.MaxInt64/4 + 1, ErrOverflow},
		{1 << 31, 1 << 30, ErrOverflow},
		{-1, 1, ErrBadReport},
		{1, 0, ErrBadReport},
		{1, -1, ErrBadReport},
	} {
		_, err := OutputBytes(c.picks, c.hidden)
		wantError(t, err, c.want)
	}
	_, err := Reward(math.MaxInt64 / 7)
	must(t, err)
	_, err = Reward(math.MaxInt64/7 + 1)
	wantError(t, err, ErrOverflow)
	_, err = Reward(-1)
	wantError(t, err, ErrOverflow)

	for _, c := range []struct{ a, b NKVR }{
		{MaxBalance, 1}, {-MaxBalance, -1}, {math.MaxInt64, math.MaxInt64}, {math.MinInt64, -1},
	} {
		_, err := add(c.a, c.b)
		wantError(t, err, ErrOverflow)
	}
	sum, err := add(MaxBalance-1, 1)
	if err != nil || sum != MaxBalance {
		t.Fatalf("%d, %v", int64(sum), err)
	}
}
