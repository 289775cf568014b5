package replica_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"listedge/cache/replica"
	"listedge/internal/list"
)

// TestModel runs the model at random, on lists of all kinds.
func TestModel(t *testing.T) {
	for name, of := range shapes {
		t.Run(name, func(t *testing.T) { testModel(t, of) })
	}
}

func testModel(t *testing.T, of shape) {
	var outcomes [replica.Outcomes]int
	var counts replica.Counts
	verified := uint64(0)
	for seed := range uint64(modelSeeds) {
		m := seededModel(of, seed)
		m.outcomes = &outcomes
		for step := range 400 {
			n, what := m.step()
			if n == nil {
				continue
			}
			if err := m.check(n); err != nil {
				t.Fatalf("seed %d, step %d, %s: %v", seed, step, what, err)
			}
		}
		for _, n := range m.nodes {
			s := n.Stats()
			counts.Rows += s.Counts.Rows
			counts.Forgotten += s.Forgotten
			counts.Uncovered += s.Uncovered
			counts.Evicted += s.Evicted
			for list, v := range s.Verified {
				verified += v.Pages
				for kind, n := range v.Mismatches {
					if n > 0 {
						t.Errorf("seed %d: %d mismatches of %s, %s", seed, n, list, kind)
					}
				}
			}
			for o, n := range s.Fills {
				counts.Fills[o] += n
			}
		}
	}
	t.Logf("%+v, %d pages verified", counts, verified)
	if verified == 0 {
		t.Error("no page was verified")
	}
	for o, n := range counts.Fills {
		if n == 0 != (replica.Outcome(o) == replica.Inconsistent) && modelSeeds > 100 {
			t.Errorf("%d fills are %s", n, replica.Outcome(o))
		}
	}
}

func seededModel(of shape, seed uint64) *model {
	m := newModel(of, rand.New(rand.NewPCG(seed, 0)), 2)
	for _, n := range m.nodes {
		longest := 2 + m.r.IntN(6)
		n.Replica = replica.New(replica.Budgets{Rows: 1000 << m.r.IntN(5), Changes: 300 << m.r.IntN(6), Parked: 500 << m.r.IntN(5), Lists: 3 + m.r.IntN(4)})
		n.CutAt(longest)
	}
	return m
}

func pick[T any](r *rand.Rand, of []T) T { return of[r.IntN(len(of))] }

// step does something; n is the node that it concerns.
func (m *model) step() (n *modelNode, what string) {
	switch k := m.r.IntN(100); {
	case k < 8:
		if len(m.active) < 4 {
			x := m.database.begin()
			switch k := m.r.IntN(24); {
			case k < 2:
				x.says = sayNoText + says(m.r.IntN(4))
			case k < 13:
				x.says = sayChanged
			}
		}
	case k < 24 && len(m.active) > 0:
		i := m.r.IntN(modelRows)
		var row *list.Row
		if m.r.IntN(5) > 0 {
			row = m.version(m.r, i)
		}
		m.write(pick(m.r, m.active), i, row)
	case k < 32 && len(m.active) > 0:
		m.log(pick(m.r, m.active))
	case k < 40 && len(m.active) > 0:
		m.end(pick(m.r, m.active))
	case k < 44:
		m.replayed += uint64(m.r.IntN(int(m.wal-m.replayed) + 1))
	case k < 50:
		m.takeSnapshot()
	case k < 58 && m.taken != nil:
		m.publish()
	case k < 74:
		n = pick(m.r, m.nodes)
		if n.next < len(m.beats) {
			m.apply(n)
			return n, "heartbeat"
		}
		return nil, ""
	case k < 82:
		after := list.Position("")
		if k == 74 {
			m.verify(pick(m.r, m.nodes))
			return nil, ""
		}
		key := pick(m.r, m.keys)
		if m.r.IntN(2) == 0 {
			after = positionIn(&key, m.version(m.r, m.r.IntN(modelRows)))
		}
		m.begin(pick(m.r, m.nodes), key, after, source(m.r.IntN(int(sources))))
	case k < 90 && len(m.flights) > 0:
		if f := pick(m.r, m.flights); !f.read {
			m.look(f, 1+m.r.IntN(3))
		}
	case k < 99 && len(m.flights) > 0:
		if f := pick(m.r, m.flights); f.read {
			m.merge(f)
			return f.node, fmt.Sprintf("merge %+v", f.Fill)
		}
	case k == 99 && m.r.IntN(3) == 0:
		m.changeFollower()
	case k == 99 && m.r.IntN(3) == 0:
		n = pick(m.r, m.nodes)
		m.reset(n)
	}
	return n, "reset"
}

// TestEveryInterleaving runs all interleavings of two transactions, two heartbeats and a
// fill, in which the first transaction commits to either of two rows.
func TestEveryInterleaving(t *testing.T) {
	for name, second := range map[string]struct {
		row, at int // at < 0 = it is removed
		source  source
	}{
		"another row":                {1, 3, primary},
		"the same row":               {0, 0, primary},
		"the same row, removed":      {0, -1, primary},
		"another row, on a standby":  {1, 3, standby},
		"the same row, on a standby": {0, 0, standby},
	} {
		t.Run(name, func(t *testing.T) {
			all, run, share := 0, 0, interleavingShare
			left := [5]int{3, 3, 2, 3, 0}
			if second.source == standby {
				left[4] = 2
				share *= 101
			}
			var visit func(order []byte, left [5]int)
			visit = func(order []byte, left [5]int) {
				done := true
				for actor := range left {
					if left[actor] > 0 {
						done = false
						next := left
						next[actor]--
						visit(append(order, byte(actor)), next)
					}
				}
				if !done || t.Failed() {
					return
				}
				all++
				if all%share != 0 {
					return
				}
				run++
				m := newModel(ofItems, rand.New(rand.NewPCG(1, 1)), 1)
				row := func(i, at int, text string) *list.Row {
					v := modelValues{row: i, at: at, name: "a", note: text, marked: true}
					row := m.row(v)
					m.values[row] = v
					return row
				}
				n := m.nodes[0]
				base := m.database.begin()
				for i := range 3 {
					m.write(base, i, row(i, i+1, "0"))
				}
				m.log(base)
				m.end(base)
				m.replayed = m.wal
				m.heartbeat(n)
				x, y := m.database.begin(), m.database.begin()
				var f *flight
				for at, actor := range order {
					ok := true
					step := 0
					for _, a := range order[:at] {
						if a == actor {
							step++
						}
					}
					switch actor {
					case 0:
						ok = m.advance(x, step, 0, row(0, 4, "x"))
					case 1:
						var changed *list.Row
						if second.at >= 0 {
							changed = row(second.row, second.at, "y")
						}
						ok = m.advance(y, step, second.row, changed)
					case 2:
						m.heartbeat(n)
					case 3:
						switch step {
						case 0:
							f = m.begin(n, m.keys[0], "", second.source)
						case 1:
							m.statement(f, 2)
						case 2:
							m.merge(f)
						}
					case 4:
						m.replayed = min(m.wal, m.replayed+1)
					}
					if !ok {
						return
					}
					if err := m.check(n); err != nil {
						t.Errorf("%v: %v", order, err)
						return
					}
				}
				m.heartbeat(n)
				m.heartbeat(n)
				if err := m.check(n); err != nil {
					t.Errorf("%v, at the end: %v", order, err)
				}
				if merged := n.Stats().Fills[replica.Merged]; merged != 1 {
					t.Errorf("%v: %d fills merged, %v", order, merged, n.Stats().Fills)
				}
			}
			visit(nil, left)
			t.Logf("%d of %d", run, all)
		})
	}
}

// advance lets a transaction do its next step; false = it waits for a lock.
func (m *model) advance(x *transaction, step, i int, row *list.Row) bool {
	switch step {
	case 0:
		return m.write(x, i, row)
	case 1:
		m.log(x)
	case 2:
		m.end(x)
	}
	return true
}

// heartbeat publishes one, and the node applies it.
func (m *model) heartbeat(n *modelNode) {
	m.takeSnapshot()
	m.publish()
	m.apply(n)
}
