package edge

import (
	"testing"
	"time"

	"github.com/google/uuid"
)

func id(n int) uuid.UUID { return uuid.UUID{byte(n), byte(n >> 8), byte(n >> 16)} }

func TestBusiestKeys(t *testing.T) {
	start := time.Unix(1e9, 0)
	t.Run("those with most requests are found among very many", func(t *testing.T) {
		var b busiest
		for i := range 100_000 {
			b.count(id(1000+i), id(7), false, start) // each once
			switch {
			case i%10 == 0:
				b.count(id(1), id(7), true, start)
			case i%20 == 1:
				b.count(id(2), id(8), false, start)
			}
		}
		top := b.list(2, start.Add(10*time.Second))
		if len(top) != 2 || top[0].Key != id(1) || top[0].Workspace != id(7) || top[1].Key != id(2) || top[1].Workspace != id(8) {
			t.Fatalf("%+v", top)
		}
		if exact := 10_000.0 * busiestSample / 10; top[0].Requests < exact || top[0].Requests > 1.1*exact || top[0].Refused < .9*exact || top[1].Refused != 0 {
			t.Errorf("%+v, want %v a second", top, exact)
		}
		if len(b.current.counts) > busiestKeys {
			t.Errorf("%d counters", len(b.current.counts))
		}
	})
	t.Run("a key that stopped is forgotten after two minutes", func(t *testing.T) {
		var b busiest
		b.count(id(1), id(7), false, start)
		if len(b.list(9, start.Add(90*time.Second))) != 1 {
			t.Error("forgotten after a minute and a half")
		}
		if top := b.list(9, start.Add(4*time.Minute)); len(top) != 0 {
			t.Errorf("after four minutes: %+v", top)
		}
	})
}
