//go:build !race

package limiter

import "testing"

// The race detector allocates on its own account, hence the build tag.
func TestInProcessTakeAllocatesNothing(t *testing.T) {
	l := open(t, Options{})
	key := l.Bucket(KeyBucket("w", "k"), policy(t, 1e6, 1000))
	workspace := l.Bucket(WorkspaceBucket("w"), policy(t, 5.0/60, 3))
	for what, f := range map[string]func(){
		"one bucket":              func() { l.Take(key, nil) },
		"two, the second refuses": func() { l.Take(key, workspace) },
		"no bucket":               func() { l.Take(nil, nil) },
		"given back":              func() { l.Take(key, nil); l.Return(key, nil) },
	} {
		f() // makes the bucket
		if n := testing.AllocsPerRun(2_000, f); n != 0 {
			t.Errorf("%s: %v allocations", what, n)
		}
	}
}
