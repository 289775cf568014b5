package lease_test

import (
	"fmt"
	"testing"

	"listedge/limiter/lease"
	. "listedge/limiter/lease/leasetest"
)

// cut: k of n nodes cut off from 10 s to 10+span s.
func TestXCut(t *testing.T) {
	for _, limit := range []struct {
		rate  float64
		burst int64
	}{{1, 1}, {10, 10}, {10, 20}, {50, 100}, {1000, 1000}} {
		p := policy(t, limit.rate, limit.burst)
		for _, c := range []struct{ k, n int }{{1, 2}, {2, 3}, {4, 8}, {7, 8}, {1, 8}} {
			line := ""
			for _, load := range []float64{.8, 3} {
				for _, how := range []string{"cut", "flap", "hang", "kill"} {
					w := New(t, 5, p, c.n)
					during := int64(0)
					w.Admit = func(*Node) {
						if w.Now > 15e6 && w.Now < 40e6 {
							during++
						}
					}
					switch how {
					case "cut":
						w.After(10e6, func() {
							for _, n := range w.Nodes[:c.k] {
								n.Cut = true
							}
						})
						w.After(40e6, func() {
							for _, n := range w.Nodes[:c.k] {
								n.Cut = false
							}
						})
					case "flap":
						for at := int64(10e6); at < 40e6; at += 5e6 {
							for _, n := range w.Nodes[:c.k] {
								w.After(at, func() { n.Cut = true })
								w.After(at+3e6, func() { n.Cut = false })
							}
						}
					case "hang":
						w.After(10e6, func() { w.Hang(30e6) })
					case "kill":
						w.After(10e6, func() {
							for i := range c.k {
								w.Nodes[i].Shunned = true
								w.Nodes[i].Stop(1000e6)
							}
						})
					}
					r := w.Measure(Steady(load), 60e6)
					line += fmt.Sprintf(" | %s over %.2f b, share %.3f during %.3f", how, r.Over/float64(p.Burst), r.Share, float64(during)/25/limit.rate)
				}
			}
			t.Logf("%4.0f/s %4d %d of %d%s", limit.rate, limit.burst, c.k, c.n, line)
		}
	}
}

func TestXFair(t *testing.T) {
	for _, limit := range []struct {
		rate  float64
		burst int64
	}{{10, 10}, {10, 20}, {50, 100}, {1000, 100}, {1000, 1000}} {
		p := policy(t, limit.rate, limit.burst)
		for _, nodes := range []int{2, 3, 8} {
			line := ""
			for _, load := range []float64{1.3, 2, 5} {
				w := New(t, 9, p, nodes)
				asked, ok := make([]float64, nodes), make([]float64, nodes)
				index := map[*Node]int{}
				for i, n := range w.Nodes {
					index[n] = i
				}
				span := int64(max(30e6, 4000e6/limit.rate))
				w.Asked = func(n *Node, yes bool) {
					if w.Now > span/4 {
						asked[index[n]]++
						if yes {
							ok[index[n]]++
						}
					}
				}
				r := w.Measure(func(w *World) (int64, int64) {
					if w.Random.Float64() < .65 {
						return w.Gap(load * limit.rate), 0
					}
					return w.Gap(load * limit.rate), 1 + w.Random.Int64N(int64(nodes)-1)
				}, span)
				sum, sq, all := 0.0, 0.0, 0.0
				rest, restOK := 0.0, 0.0
				for i := range asked {
					x := ok[i] / asked[i]
					sum += x * asked[i]
					sq += x * x * asked[i]
					all += asked[i]
					if i > 0 {
						rest += asked[i]
						restOK += ok[i]
					}
				}
				line += fmt.Sprintf(" | %.1f: Jain %.4f hot %.2f others %.2f calls %.3f share %.3f", load, sum*sum/all/sq, ok[0]/asked[0], restOK/rest, r.Calls, r.Share)
			}
			t.Logf("%4.0f/s %4d N=%d%s", limit.rate, limit.burst, nodes, line)
		}
	}
}

func TestXRemaining(t *testing.T) {
	for _, limit := range []struct {
		rate  float64
		burst int64
	}{{.1, 100}, {10, 20}, {50, 100}, {1000, 1000}} {
		p := policy(t, limit.rate, limit.burst)
		for _, nodes := range []int{1, 3, 8} {
			line := ""
			turn := 0
			for _, s := range []struct {
				name string
				Shape
			}{{"turns", func(w *World) (int64, int64) { turn++; return 100_000, int64(turn % nodes) }},
				{"fast turns", func(w *World) (int64, int64) { turn++; return 1_000, int64(turn % nodes) }},
				{"80%", Steady(.8)}, {"150%", Steady(1.5)}, {"bursty", Bursty}, {"moving", Moving}, {"relay", Relay}, {"waking", Waking}} {
				w := New(t, 9, p, nodes)
				worst, sum, seen, over := 0.0, 0.0, 0, 0
				w.Asked = func(n *Node, yes bool) {
					if !yes {
						return
					}
					shown := n.Lease.Status(n.Now(), false).Remaining
					is := w.Remaining()
					d := float64(shown) - float64(is)
					worst = max(worst, d)
					sum += d
					seen++
					if d > 0 {
						over++
					}
				}
				w.Measure(s.Shape, 20e6)
				line += fmt.Sprintf(" | %s worst %+.0f mean %.1f over %.2f%%", s.name, worst, sum/float64(seen), 100*float64(over)/float64(seen))
			}
			t.Logf("%4.1f/s %4d N=%d%s", limit.rate, limit.burst, nodes, line)
		}
	}
}

var _ = lease.Token
