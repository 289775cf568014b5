package node

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alecthomas/kong"

	"listedge/internal/changefeed"
	"listedge/internal/fleet"
	"listedge/internal/list"
	"listedge/internal/sandbox/sandboxtest"
	"listedge/metrics"
)

// The admin listener answers to the host of --admin-listen, and to no other name.
func TestTheAdminListenerAnswersToTheNameThatItListensBy(t *testing.T) {
	names := adminNames(map[string]any{"admin-listen": "edge1.shop.example:9090"})
	if len(names) != 2 || names[0] != "edge1.shop.example" {
		t.Errorf("%v", names)
	}
	if names := adminNames(map[string]any{"admin-listen": ":9090"}); len(names) != 1 {
		t.Errorf("%v", names)
	}
}

// A node rests after a minute without a request, and no longer than until it has answered one. What has passed is not checked
// meanwhile, and what has failed is.
func TestANodeThatNobodyAsksRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &Node{options: Options{Flags: Flags{FreshnessBound: time.Second}}, metrics: metrics.New("", ""),
			feed: changefeed.NewSubscriber(changefeed.NewLocal(), &fleet.Followed{}, slog.New(slog.DiscardHandler))}
		ctx, stop := context.WithCancel(t.Context())
		go n.restWhileIdle(ctx)
		var failure error
		asked, route := 0, n.metrics.Edge.Route("one")
		check := checks{n}.unlessIdle(func(context.Context) error { asked++; return failure })
		expect := func(what string, rests bool, asks int) {
			asked = 0
			if err := check(ctx); n.rests.Load() != rests || asked != asks || !errors.Is(err, failure) {
				t.Errorf("%s: rests %t, asked %d times, %v; want %t, %d, %v", what, n.rests.Load(), asked, err, rests, asks, failure)
			}
		}
		time.Sleep(restAfter - time.Second)
		expect("soon after the start", false, 1)
		time.Sleep(2 * time.Second)
		expect("a minute after the start", true, 0)
		n.metrics.Edge.Answered(route, metrics.OutcomeMemory, 200, 0)
		time.Sleep(2 * watchInterval)
		failure = errors.New("no right")
		expect("after a request", false, 1)
		time.Sleep(restAfter + watchInterval)
		expect("a minute later", true, 1)
		stop()
	})
}

// beats notes the age of the last proof.
type beats struct{ moment time.Time }

func (b *beats) Reset(string, changefeed.ResetCause) {}

func (b *beats) Beat(beat changefeed.Beat) {
	if !beat.Moment.IsZero() {
		b.moment = beat.Moment
	}
}

// The proofs of a node that rests are as far from the least bound as those of one that does not: its pages stay fresh.
func TestANodeThatRestsKeepsItsBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const bound, every = 200 * time.Millisecond, 33 * time.Millisecond
		log, b := changefeed.NewLocal(), &beats{}
		_ = log.SetEpoch(t.Context(), "", "e")
		n := &Node{options: Options{Flags: Flags{FreshnessBound: bound}}, metrics: metrics.New("", ""),
			feed: changefeed.NewSubscriber(log, &fleet.Followed{}, slog.New(slog.DiscardHandler), b)}
		ctx, stop := context.WithCancel(t.Context())
		go n.restWhileIdle(ctx)
		go n.feed.Run(ctx)
		oldest, last := time.Duration(0), changefeed.Position{Term: 1}
		for began := time.Now(); time.Since(began) < restAfter+10*time.Second; {
			at := changefeed.Position{Term: 1, N: last.N + 1}
			_ = log.Append(ctx, "e", changefeed.Entry{Position: at, Heartbeat: &changefeed.Heartbeat{Snapshot: "5:5:", After: last}})
			last = at
			time.Sleep(every)
			synctest.Wait()
			if n.rests.Load() {
				oldest = max(oldest, time.Since(b.moment))
			}
		}
		if oldest == 0 || oldest > proofAge {
			t.Errorf("proofs are up to %s old", oldest)
		}
		stop()
	})
}

// A node verifies 0.1 times a second by default, once it has something to verify. Each time takes one statement
// (TestAVerificationIsOneStatement).
func TestANodeVerifiesSixTimesAMinute(t *testing.T) {
	var f struct {
		ListenFlags
		Flags
	}
	_, err := kong.Must(&f, kong.Vars{"drain": "0s"}).Parse(nil)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		n := -1 // when the node starts it holds nothing
		repeat(ctx, f.Verify, func(context.Context) { n++ })
		if n < 350 || n > 360 {
			t.Errorf("%d times an hour", n)
		}
	})
}

// A node whose lists cannot be resolved yet says why on the admin listener, and takes no requests until they are.
func TestANodeWaitsForItsLists(t *testing.T) {
	public, private, err := Listen(ListenFlags{"127.0.0.1:0", "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	var resolved atomic.Bool
	o := Options{Public: public, Private: private, Log: newLogOn(slog.DiscardHandler)}
	ended := make(chan error, 1)
	go func() {
		ended <- o.AwaitLists(t.Context(), func(context.Context) (*list.Set, error) {
			if resolved.Load() {
				return list.BuiltIn(), nil
			}
			return nil, errors.New("it is away")
		})
	}()
	sandboxtest.Within(t, time.Minute, "the reason", func() bool {
		response, err := http.Get("http://" + private.Addr().String() + "/readyz")
		if err != nil {
			return false
		}
		defer response.Body.Close()
		said, _ := io.ReadAll(response.Body)
		return response.StatusCode == http.StatusServiceUnavailable && strings.Contains(string(said), "wait for Postgres: it is away")
	})
	if conn, err := net.Dial("tcp", public.Addr().String()); err == nil {
		conn.Close()
		t.Error("the public listener accepts a connection")
	}
	resolved.Store(true)
	err = <-ended
	if err != nil || o.Lists != list.BuiltIn() || o.Public.Addr().String() != public.Addr().String() || o.Private.Addr().String() != private.Addr().String() {
		t.Errorf("%v, %s, %s", err, o.Public.Addr(), o.Private.Addr())
	}
	for _, l := range []net.Listener{o.Public, o.Private} {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
		l.Close()
	}
}
