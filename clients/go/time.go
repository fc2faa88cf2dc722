package leasehold

import (
	"math/rand"
	"strconv"
	"sync"
	"time"
)

// random is seeded, which the functions of math/rand are only since Go 1.20. Without a seed, all clients would retry at
// the same moments.
var random = struct {
	sync.Mutex
	*rand.Rand
}{Rand: rand.New(rand.NewSource(time.Now().UnixNano()))}

// elapsed is the time since then, by the clock that says more. The monotonic clock cannot be set, but on Linux and macOS
// it stops while the machine is suspended; the wall clock goes on. So a lease is never counted for too long; a wall
// clock that is set forward ends it early.
func elapsed(then time.Time) time.Duration {
	now := time.Now()
	// Round(0) removes the monotonic reading.
	return longer(now.Sub(then), now.Round(0).Sub(then.Round(0)))
}

func longer(a, b time.Duration) time.Duration {
	if a > b {
		return a
	}
	return b
}

func shorter(a, b time.Duration) time.Duration {
	if a < b {
		return a
	}
	return b
}

// later is the same or up to a quarter more, so that many clients do not act at the same moment.
func later(d time.Duration) time.Duration {
	return d + fraction(d/4)
}

// jittered is between half of it and all of it.
func jittered(d time.Duration) time.Duration {
	return d/2 + fraction(d/2)
}

func fraction(d time.Duration) time.Duration {
	random.Lock()
	defer random.Unlock()
	return time.Duration(random.Float64() * float64(d))
}

// inMillis is a duration as the service reads it.
func inMillis(d time.Duration) string {
	return strconv.FormatInt(int64(longer(d, time.Millisecond)/time.Millisecond), 10) + "ms"
}
