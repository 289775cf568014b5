package cache_test

import (
	"testing"

	"listedge/cache"
	"listedge/cache/replica"
	"listedge/internal/boottime/boottimetest"
	"listedge/internal/changefeed"
	"listedge/internal/list"
	"listedge/internal/page"
)

// verifies has the node verify a page while the database has these rows, and returns how many statements that took.
func (n *node) verifies(texts ...string) (statements int) {
	at := changefeed.ReadPoint{StartedAt: n.run, Snapshot: n.snapshot()}
	n.origins.verify = func(q page.Query) (page.Read, error) {
		statements++
		read := page.Read{End: true, At: at}
		for _, row := range rowsOf(texts...) {
			if q.List.Position(&row, q.Order) > q.After {
				read.Rows = append(read.Rows, row)
			}
		}
		return read, nil
	}
	n.Verify(n.Context())
	return statements
}

// compared returns what was verified of the list.
func (n *node) compared() replica.Verified { return n.Stats().Replica.Verified[n.q.List.Name] }

func TestVerify(t *testing.T) {
	held := []string{"a", "b", "c"}
	fill := func(n *node) {
		n.asked(n.reads(page.Read{Rows: rowsOf(held...), End: true}), "a b c", cache.Origin)
	}
	t.Run("what is held is compared by one statement, which is no fill", func(t *testing.T) {
		onNode(t, func(n *node) {
			if n.verifies(held...) != 0 {
				t.Error("a statement, though nothing is held")
			}
			fill(n)
			for i := range 20 {
				if v := n.compared(); n.verifies(held...) != 1 || v.Pages != uint64(i) {
					t.Errorf("%+v", v)
				}
			}
			n.isHit("a b c")
			checkFills(t, n.opened, 1, 0)
		})
	})
	t.Run("what differs is told once and read again", func(t *testing.T) {
		onNode(t, func(n *node) {
			var told []replica.Mismatch
			n.mismatched = func(m replica.Mismatch) { told = append(told, m) }
			fill(n)
			n.verifies("a", "b", "C")
			n.isHit("")
			n.beat()
			n.beat()
			if v := n.compared(); v.Mismatches[replica.Rows] != 1 || len(told) != 1 || told[0].Table != (changefeed.Table{List: n.q.List, Tenant: n.q.Tenant}) {
				t.Errorf("%+v, %+v", v, told)
			}
		})
	})
	t.Run("a statement that sees more waits for its heartbeat", func(t *testing.T) {
		onNode(t, func(n *node) {
			fill(n)
			n.change(n.q, rowAt(2, "C"))
			n.verifies("a", "b", "C")
			n.isHit("a b c")
			if v := n.compared(); v.Pages != 0 {
				t.Errorf("before the heartbeat: %+v", v)
			}
			n.beat()
			n.isHit("a b C")
			if v := n.compared(); v.Pages != 1 || v.Mismatches[replica.Rows] != 0 {
				t.Errorf("%+v", v)
			}
		})
	})
	for name, unproven := range map[string]func(n *node){
		"the proof is too old":       func(*node) { boottimetest.Pass(bound) },
		"changes cannot be followed": func(n *node) { n.SetTTLMode(true) },
		"the log has a gap":          func(n *node) { n.reset("epoch") },
	} {
		t.Run(name, func(t *testing.T) {
			onNode(t, func(n *node) {
				fill(n)
				unproven(n)
				if n.verifies(held...) != 0 {
					t.Error("a page was verified")
				}
			})
		})
	}
	t.Run("an error", func(t *testing.T) {
		onNode(t, func(n *node) {
			fill(n)
			for _, verify := range []func(page.Query) (page.Read, error){
				func(page.Query) (page.Read, error) {
					return page.Read{Rows: []list.Row{rowAt(0, "wrong")}}, page.ErrOverloaded
				},
				func(page.Query) (page.Read, error) { panic("a bug") },
			} {
				n.origins.verify = verify
				n.Verify(n.Context())
			}
			n.isHit("a b c")
			if v := n.compared(); v.Pages != 0 || v.Mismatches[replica.Rows] != 0 {
				t.Errorf("%+v", v)
			}
		})
	})
}
