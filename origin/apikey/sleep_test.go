package apikey

import (
	"testing"
	"testing/synctest"
	"time"

	"listedge/internal/boottime/boottimetest"
)

// A key that was revoked while the node's machine slept is not let in when it
// wakes: neither by its last look-up nor by the last proof.
func TestAKeyIsLookedUpAfterASleep(t *testing.T) {
	for name, proven := range map[string]bool{"looked up again and again": false, "while changes are followed": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				table, m := newKeyTable(2), boottimetest.NewMachine()
				r := &ring{Cache: NewCache(table.lookup, func(Key, *int64) {}, time.Minute, m.Clock)}
				defer r.Close()
				r.join()
				_, _ = r.use(0)
				_, _ = r.use(1)
				if proven {
					r.provenFor(2*maxAge, func() {})
				}
				if !r.isKnown(0) {
					t.Fatal("not known before")
				}
				table.change(func(s *keyTable) { delete(s.keys, hashNumber(0)) })
				m.Sleep(time.Hour)
				if r.isKnown(0) {
					t.Error("known by what was looked up an hour ago")
				}
				if proven { // a heartbeat after the sleep proves reads from before it
					r.prove(time.Now().Add(-time.Millisecond), r.server)
					if r.isKnown(0) {
						t.Error("known by a proof from before")
					}
				}
				if _, err := r.use(0); err != ErrUnknown {
					t.Error(err)
				}
				if _, err := r.use(1); err != nil {
					t.Errorf("a valid key: %v", err)
				}
			})
		})
	}
}
