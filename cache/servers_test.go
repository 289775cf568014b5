package cache_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"listedge/cache"
	"listedge/cache/replica"
	"listedge/internal/boottime/boottimetest"
	"listedge/internal/changefeed"
	"listedge/internal/fleet"
	"listedge/internal/list"
	"listedge/internal/list/listtest"
	"listedge/internal/page"
)

func TestAnAnswerOfAnotherPrimaryIsNotServed(t *testing.T) {
	onNode(t, func(n *node) {
		n.asked(n.reads(shows("a")), "a", cache.Origin)
		n.change(n.q)
		n.beat()
		boottimetest.Pass(fillPause)
		n.run = "another"
		if r, err := ask(n.opened, n.q, n.reads(shows("b"))); err != nil || !errors.Is(r.Err, page.ErrWrongServer) || text(r.Entry) != "a" {
			t.Errorf("%+v, %v", r, err)
		}
		if _, err := ask(n.opened, queryOf("other"), fails(page.ErrWrongServer)); !errors.Is(err, page.ErrWrongServer) {
			t.Error(err)
		}
		if got := n.Stats().Replica.Fills[replica.WrongServer]; got != 2 {
			t.Errorf("%d of a wrong server", got)
		}
	})
}

// If a node's server is on an older timeline than the fleet follows, none of its answers is
// served, with or without proof.
func TestAServerOnAnOldTimelineIsTheWrongServer(t *testing.T) {
	onNode(t, func(n *node) {
		newer := fleet.EpochName{Identity: ofShop.Digest(), Timeline: 2, Instance: "run", Published: "published", Random: "a"}
		if !n.followed.ObserveEpoch(newer.String()) {
			t.Fatal("the epoch is not followed")
		}
		for _, what := range []string{"with proof", "without"} {
			n.run = "old primary's"
			if r, err := ask(n.opened, n.q, n.reads(shows("a"))); !errors.Is(err, page.ErrWrongServer) {
				t.Errorf("%s: %+v, %v", what, r, err)
			}
			n.run = "run" // the new primary's: the node's other connection was not renewed yet
			n.asked(n.reads(shows("a")), "a", cache.Origin)
			n.q = queryOf("other")
			boottimetest.Pass(bound)
		}
		n.followed.SetServer(fleet.Server{Identity: ofShop, Timeline: 2})
		n.run = "any"
		boottimetest.Pass(sharing)
		n.asked(n.reads(shows("a")), "a", cache.Origin)
	})
}

// What a standby returned is served if it shows all that the last proof does, or if the
// replica has what it lacks.
func TestStandbys(t *testing.T) {
	for name, test := range map[string]struct {
		server            string
		lsn, through      uint64 // the heartbeat's is 100
		err               error
		want              string
		parked, forgotten bool
	}{
		"as new as the heartbeat":        {lsn: 100, through: 100, want: "A", parked: true},
		"behind":                         {lsn: 99, through: 99, want: "A"},
		"ahead":                          {lsn: 101, through: 101, want: "standby", parked: true},
		"perhaps ahead, perhaps behind":  {lsn: 99, through: 101, want: "primary", parked: true},
		"behind what is remembered":      {lsn: 98, through: 98, want: "primary"},
		"of another primary":             {server: "7400000000000000001/2", lsn: 100, through: 100, want: "primary"},
		"broken":                         {err: errOrigin, want: "primary"},
		"of a list with any row changed": {lsn: 99, through: 99, want: "primary", forgotten: true},
	} {
		t.Run(name, func(t *testing.T) {
			onNode(t, func(n *node) {
				if test.forgotten {
					n.change(n.q)
				} else {
					n.change(n.q, rowAt(0, "A"))
				}
				n.beat()
				proof := n.clock.Now()
				boottimetest.Pass(sharing / 2)
				fill := n.reads(shows("primary"))
				fill.Standby = func(_ context.Context, last changefeed.Proof) (page.Read, error) {
					f := shows("standby")
					if test.want == "A" && test.lsn < 100 {
						f = shows("a") // it had not replayed the change
					} else if test.want == "A" {
						f = shows("A")
					}
					f.At = changefeed.ReadPoint{Timeline: ofServer, LSN: test.lsn, Through: test.through}
					if test.server != "" {
						f.At.Timeline = test.server
					}
					if last.LSN != 100 {
						t.Errorf("the proof has LSN %d", last.LSN)
					}
					return f, test.err
				}
				r := n.asked(fill, test.want, cache.Origin)
				if parked := n.Stats().Replica.Parked == 1; parked != test.parked {
					t.Errorf("parked: %t", parked)
				}
				if test.want != "primary" && r.Entry.Proof != proof {
					t.Errorf("known to be right at %v, not %v", r.Entry.Proof, proof)
				}
			})
		})
	}
}

func TestAStandbyIsNotAskedWithoutProofNorByABypass(t *testing.T) {
	onNode(t, func(n *node) {
		fill := n.reads(shows("primary"))
		fill.Standby = func(context.Context, changefeed.Proof) (page.Read, error) {
			t.Error("the standby was asked")
			return page.Read{}, errOrigin
		}
		r, err := bypass(n.opened, n.q, fill)
		if want(want{body: "primary", source: cache.Origin}).check(t, r, err); !r.Bypassed {
			t.Error("not bypassed")
		}
		boottimetest.Pass(bound)
		n.asked(fill, "primary", cache.Origin)
	})
}

// A statement reads the rows of four pages. They are answered from it, also while its rows wait for a heartbeat, whoever was
// asked. While something is written, all do.
func TestAWalkWhileHeartbeatsAreLate(t *testing.T) {
	const pages, step = 100, 20 * time.Millisecond
	var all []list.Row
	for i := range pages * queryOf("q").Limit {
		all = append(all, listtest.Item(i, "id", listtest.ID(i+10), "sku", "x"))
	}
	for name, test := range map[string]struct {
		late    time.Duration // from heartbeat to heartbeat
		standby bool
		behind  uint64 // how much of what the last proof shows the standby has not replayed
	}{
		"primary":           {late: bound - step},
		"unproven":          {late: pages * step * 2},
		"standby":           {late: bound - step, standby: true},
		"standby, in time":  {late: 2 * step, standby: true},
		"standby that lags": {late: bound - step, standby: true, behind: 1},
	} {
		t.Run(name, func(t *testing.T) {
			onNode(t, func(n *node) {
				byPrimary, byStandby, beat := 0, 0, n.clock.Now()
				if test.late > bound {
					boottimetest.Pass(bound)
				}
				for first := 0; first < len(all); first += n.q.Limit {
					q := n.q
					if first > 0 {
						q = behind(q, &all[first-1])
					}
					read := func(at func() changefeed.ReadPoint) page.Read {
						n.change(queryOf("other"), rowAt(0, "y"))
						rows := all[first:min(first+4*q.Limit+1, len(all))]
						return page.Read{Rows: rows, End: first+len(rows) == len(all), At: at()}
					}
					from := origin{Primary: func(context.Context, string) (page.Read, error) {
						byPrimary++
						return read(func() changefeed.ReadPoint { return changefeed.ReadPoint{StartedAt: n.run, Snapshot: n.snapshot()} }), nil
					}}
					if test.standby {
						from.Standby = func(_ context.Context, last changefeed.Proof) (page.Read, error) {
							byStandby++
							return read(func() changefeed.ReadPoint {
								return changefeed.ReadPoint{Timeline: ofServer, LSN: last.LSN - test.behind, Through: n.xid}
							}), nil
						}
					}
					r, err := ask(n.opened, q, from)
					if err != nil || r.Err != nil || len(r.Entry.Next) == 0 != (first+q.Limit == len(all)) {
						t.Fatalf("%+v, %v", r, err)
					}
					boottimetest.Pass(step)
					if n.clock.Now()-beat >= test.late {
						n.beat()
						beat = n.clock.Now()
					}
				}
				if byPrimary+byStandby == 0 || max(byPrimary, byStandby)*100 > 27*pages || byPrimary > 0 != (!test.standby || test.behind > 0) {
					t.Errorf("%d pages: %d statements on the primary, %d on the standby", pages, byPrimary, byStandby)
				}
			})
		})
	}
}

// What a standby answered is fresh while the last proof is trusted, and shows no more than the standby did. Behind a later
// heartbeat it is shared like any answer, from the moment of the proof before it on. So are the pages behind it.
func TestAnAnswerOfAStandbyAheadOfTheLog(t *testing.T) {
	for name, test := range map[string]struct {
		later bool
		fresh time.Duration // since the proof
	}{"of the last proof": {false, bound}, "of the proof before": {true, sharing}} {
		t.Run(name, func(t *testing.T) {
			onNode(t, func(n *node) {
				boottimetest.Pass(sharing / 2)
				fill := n.reads(page.Read{})
				fill.Standby = func(_ context.Context, last changefeed.Proof) (page.Read, error) {
					return page.Read{Rows: rowsOf("a", "b", "c", "d", "e", "f", "g"),
						At: changefeed.ReadPoint{Timeline: ofServer, LSN: last.LSN, Through: last.LSN + 9}}, nil
				}
				n.asked(fill, "a b c", cache.Origin)
				if test.later {
					n.change(queryOf("other"), rowAt(0, "y"))
					n.beat()
				}
				boottimetest.Pass(test.fresh - sharing/2 - 1)
				first, second := n.q, behind(n.q, &rowsOf("a", "b", "c")[2])
				for _, want := range [][2]string{{"a b c", "d e f"}, {"", ""}} {
					n.q = first
					n.isHit(want[0])
					n.q = second
					n.isHit(want[1])
					boottimetest.Pass(1)
				}
			})
		})
	}
}
