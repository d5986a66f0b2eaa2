package ledger

import (
	"fmt"
	"math"
	"strconv"
)

// NKVR is an amount of the reward, in 10^-9 KVR. It is never a float.
type NKVR int64

const (
	// BytesPerValue is what a value of an expert's output counts as, however it travelled.
	BytesPerValue = 4
	// Rate is nKVR a byte of output, until a wallet is told another.
	Rate = 7
	// UnitBytes is bytes of output a unit.
	UnitBytes = 1_000_000
	// KVR is one KVR.
	KVR NKVR = 1_000_000_000
)

// MaxOutput is the most bytes of output that one report may be about: 2 PB, which are 16 million KVR.
const MaxOutput = 1 << 51

// MaxRate is the most nKVR that a byte may earn.
const MaxRate = 1 << 10

// MaxBalance is the most that an account may hold or owe.
const MaxBalance NKVR = 1 << 62

// OutputBytes returns the bytes of expert output of a number of picks: picks x hidden x 4.
func OutputBytes(picks int64, hidden int) (int64, error) {
	if picks < 0 || hidden < 1 {
		return 0, fmt.Errorf("%w: %d picks of %d values", ErrBadReport, picks, hidden)
	}
	if int64(hidden) > math.MaxInt64/BytesPerValue || picks > math.MaxInt64/(int64(hidden)*BytesPerValue) {
		return 0, fmt.Errorf("%w: %d picks of %d values", ErrOverflow, picks, hidden)
	}
	return picks * int64(hidden) * BytesPerValue, nil
}

// Reward returns what bytes of expert output earn: 7 nKVR a byte, so 0.007 KVR a unit.
func Reward(bytes int64) (NKVR, error) {
	if bytes < 0 || bytes > math.MaxInt64/Rate {
		return 0, fmt.Errorf("%w: %d bytes of output", ErrOverflow, bytes)
	}
	return NKVR(bytes * Rate), nil
}

// FormatUnits returns bytes of output in units, exactly: 1277952 bytes are "1.277952".
func FormatUnits(bytes int64) string {
	m := NKVR(bytes).magnitude()
	return fmt.Sprintf("%s%d.%06d", sign(bytes), m/UnitBytes, m%UnitBytes)
}

// String returns the amount for people, "0.00895 KVR": five decimals, or as many more as three
// digits other than leading zeros need. It rounds half away from zero.
func (n NKVR) String() string {
	const places, most = 9, 4 // decimals of a KVR; how many may be left out
	magnitude := n.magnitude()
	drop := most
	if magnitude != 0 {
		drop = max(0, min(len(strconv.FormatUint(magnitude, 10))-3, most))
	}
	step := uint64(1)
	for range drop {
		step *= 10
	}
	rounded := (magnitude + step/2) / step
	one := uint64(KVR) / step
	return fmt.Sprintf("%s%d.%0*d KVR", sign(int64(n)), rounded/one, places-drop, rounded%one)
}

// magnitude returns |n|, which for the least int64 is no int64.
func (n NKVR) magnitude() uint64 {
	if n < 0 {
		return -uint64(n)
	}
	return uint64(n)
}

func sign(v int64) string {
	if v < 0 {
		return "-"
	}
	return ""
}

// add returns a+b, or ErrOverflow when the sum is beyond what an account may hold.
func add(a, b NKVR) (NKVR, error) {
	sum := a + b
	if (b > 0 && sum < a) || (b < 0 && sum > a) || sum > MaxBalance || sum < -MaxBalance {
		return 0, fmt.Errorf("%w: balance %d and %d nKVR", ErrOverflow, a, b)
	}
	return sum, nil
}
