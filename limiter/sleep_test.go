package limiter

import (
	"testing"
	"time"

	"listedge/internal/boottime"
	"listedge/internal/sandbox/redistest"
)

// What a node held when its machine fell asleep is not spent when it wakes: the
// shared bucket has counted it as free again meanwhile.
func TestALeaseEndsInASleep(t *testing.T) {
	t.Parallel()
	m := boottime.NewMachine()
	_, client := redistest.Start(t)
	l := open(t, Options{Redis: client, Budget: patient, Boottime: m.Clock})
	b := l.Bucket(KeyBucket("workspace", "key"), policy(t, 1_000, 1_000))
	eventually(t, "a lease with tokens left", func() bool { return l.Take(b, nil).Allowed && b.lease.holds(l.now()) > 0 })
	m.Sleep(time.Hour)
	if left := b.lease.holds(l.now()); left != 0 {
		t.Errorf("%d tokens may be spent still", left)
	}
	if d := l.Take(b, nil); !d.Allowed || d.Source != SourceRedis {
		t.Errorf("%+v", d)
	}
}
