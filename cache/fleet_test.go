package cache_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"listedge/cache"
	"listedge/internal/boottime/boottimetest"
	"listedge/internal/changefeed"
	"listedge/internal/fleet"
	"listedge/internal/page"
	"listedge/internal/sandbox/redistest"
)

// The tests of this file have nodes that share Redis, and follow changes unless they say
// otherwise.

// twoNodes opens two nodes that follow one log for so long that no proof becomes too old.
func twoNodes(t *testing.T) (f *feed, client *redis.Client, first, second *opened) {
	_, client = startRedis(t)
	o := cache.Options{Redis: client, TTL: time.Hour, MaxStale: time.Hour, Bound: time.Hour}
	first, second = open(t, o), open(t, o)
	return follow(first, second), client, first, second
}

func TestRowsOfAnotherNodeAreMerged(t *testing.T) {
	for name, test := range map[string]struct {
		between func(f *feed, second *opened) // the store and the look
		want    want
	}{
		"as they are": {func(*feed, *opened) {}, want{body: "a b c", source: cache.Redis}},
		"with a change since": {func(f *feed, _ *opened) {
			f.change(queryOf("q"), rowAt(1, "B"))
			f.beat()
		}, want{body: "a B c", source: cache.Redis}},
		"not if a change may be forgotten": {func(f *feed, second *opened) {
			f.beat()
			second.Reset("epoch", changefeed.ResetGap)
			f.beat()
		}, want{body: "a b c", hadStale: true, err: errOrigin}},
		"not of another epoch": {func(f *feed, second *opened) {
			second.Reset("another", changefeed.ResetGap)
			f.at = changefeed.Position{} // it remembers all since then
			f.beat()
		}, want{body: "a b c", hadStale: true, err: errOrigin}},
		"not without proof": {func(f *feed, second *opened) {
			second.Reset("epoch", changefeed.ResetGap)
		}, want{body: "a b c", hadStale: true, err: errOrigin}},
	} {
		t.Run(name, func(t *testing.T) {
			f, _, first, second := twoNodes(t)
			q := queryOf("q")
			forward(t, first, q, f.reads(page.Read{Rows: rowsOf("a", "b", "c", "d", "e", "f", "g")}))
			first.WaitStored()
			test.between(f, second)
			r, err := ask(second, q, fails(errOrigin))
			test.want.check(t, r, err)
			if test.want.err != nil {
				return
			}
			f.change(q, rowAt(2, "C"))
			f.beat()
			if r, ok := second.Hit(q, time.Now()); !ok || !strings.HasSuffix(text(r.Entry), " C") {
				t.Errorf("%t: the next change is not applied", ok)
			}
			// The pages behind it, which one statement read, are in Redis, too.
			r, err = ask(second, behind(q, &rowsOf("a", "b", "c")[2]), fails(errOrigin))
			want{body: "d e f", source: cache.Redis}.check(t, r, err)
			checkFills(t, second, 0, 0)
		})
	}
}

// What a standby returned is as old in Redis as the proof, however lately it was read.
func TestTheAgeOfAStandbysRowsIsThatOfTheProof(t *testing.T) {
	for name, behind := range map[string]uint64{"as new as the heartbeat": 0, "behind": 1} {
		t.Run(name, func(t *testing.T) {
			_, client := startRedis(t)
			m, q := boottimetest.NewMachine(), queryOf(t.Name())
			o := cache.Options{Redis: client, TTL: time.Hour, MaxStale: time.Hour, Bound: time.Hour}
			second := open(t, o)
			o.Clock = m.Clock
			first := open(t, o)
			f := follow(first)
			second.Reset("epoch", changefeed.ResetJoin) // it has no proof
			f.change(q, rowAt(0, "B"))
			f.beat()
			m.Sleep(40 * time.Minute)
			fill := f.reads(shows("primary"))
			fill.Standby = func(_ context.Context, last changefeed.Proof) (page.Read, error) {
				rows := shows([]string{"B", "a"}[behind])
				rows.At = changefeed.ReadPoint{Timeline: ofServer, LSN: last.LSN - behind, Through: last.LSN - behind}
				return rows, nil
			}
			forward(t, first, q, fill)
			first.WaitStored()
			r, err := ask(second, q, fails(errOrigin))
			want{body: "B", hadStale: true, err: errOrigin}.check(t, r, err)
			if r.Age < 40*time.Minute {
				t.Errorf("%v old, although nothing was proven for 40 minutes", r.Age)
			}
		})
	}
}

// Rows of a standby of another primary are not merged, nor shared. Those of one that is ahead of the log are served, if it had
// replayed all that the last proof names.
func TestRowsOfAStandbyInRedis(t *testing.T) {
	f, client, c, _ := twoNodes(t)
	f.change(queryOf("other"), rowAt(0, "b"))
	f.beat()
	for name, test := range map[string]struct {
		server       string
		lsn, through uint64
		served       bool
	}{
		"of this primary":       {ofServer, f.xid + 1<<40, f.xid, true},
		"of another":            {"7400000000000000001/2", f.xid + 1<<40, f.xid, false},
		"ahead, behind nothing": {ofServer, f.xid, f.xid + 1, true},
		"perhaps behind":        {ofServer, f.xid - 1, f.xid + 1, false},
	} {
		q, p := queryOf(name), shows("a")
		p.At = changefeed.ReadPoint{Timeline: test.server, LSN: test.lsn, Through: test.through}
		if err := client.Set(t.Context(), inRedis(q), cache.Encode(q, p, "epoch", time.Hour, time.Now()), time.Hour).Err(); err != nil {
			t.Fatal(err)
		}
		r, err := ask(c, q, fails(errOrigin))
		if err != nil || text(r.Entry) != "a" || (r.Err == nil) != test.served || r.HadStale == test.served {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
}

// Rows that another node read after this node's last heartbeat are served until the next
// one sees as much.
func TestRowsAheadOfTheLogAreServed(t *testing.T) {
	f, _, first, second := twoNodes(t)
	q := queryOf("q")
	f.change(q, rowAt(0, "A"))
	forward(t, first, q, f.reads(shows("A")))
	first.WaitStored()
	least := second.ProofAge()
	r, err := ask(second, q, fails(errOrigin))
	want{body: "A", source: cache.Redis}.check(t, r, err)
	if most := second.ProofAge(); r.Age < least || r.Age > most {
		t.Errorf("%v old, the proof %v to %v", r.Age, least, most)
	}
	f.change(q, rowAt(0, "B"))
	f.beat()
	if r, ok := second.Hit(q, time.Now()); !ok || text(r.Entry) != "B" {
		t.Errorf("%t: the next change is not applied", ok)
	}
}

// Only one node of a fleet fills an entry that several miss. The others find it in Redis.
func TestOneNodeFillsForTheFleet(t *testing.T) {
	server, client := startRedis(t)
	o := cache.Options{Redis: client, TTL: time.Hour, MaxStale: time.Hour, Bound: time.Hour}
	first := open(t, o)
	other := redistest.Client(t, server)
	o.Redis = other
	second := open(t, o)
	f := follow(first, second)
	q, release, filled := queryOf("q"), make(chan struct{}), make(chan struct{})
	claims := func() int { return len(client.Keys(t.Context(), "*fill:*").Val()) }
	began := make(chan struct{})
	go func() {
		defer close(filled)
		r, err := ask(first, q, origin{Primary: func(ctx context.Context, run string) (page.Read, error) {
			if err := client.Persist(ctx, strings.Replace(inRedis(q), "page:", "fill:", 1)).Err(); err != nil { // this machine may be slow
				return page.Read{}, err
			}
			close(began)
			<-release
			return f.reads(shows("a")).Primary(ctx, run)
		}})
		if err != nil || r.Source != cache.Origin {
			t.Errorf("%+v, %v", r, err)
		}
	}()
	<-began
	looks := 0
	other.AddHook(hook{many: func(ctx context.Context, c []redis.Cmder, next redis.ProcessPipelineHook) error {
		err := next(ctx, c)
		if c[0].Name() == "pttl" {
			if looks++; looks == 2 { // the one after the claim
				close(release)
				<-filled
				first.WaitStored()
			}
		}
		return err
	}})
	r, err := ask(second, q, fails(errOrigin))
	want{body: "a", source: cache.Redis}.check(t, r, err)
	if n := claims(); n != 0 {
		t.Errorf("%d claims after a fill", n)
	}
	if _, err := ask(first, queryOf("r"), fails(errOrigin)); !errors.Is(err, errOrigin) {
		t.Error(err)
	}
	first.WaitStored()
	if n := claims(); n != 0 {
		t.Errorf("%d claims after a fill that failed", n)
	}
}

// A page that is served for long is stored again as it is then, so that a node that starts
// can bring it up to date.
func TestAHitStoresAgain(t *testing.T) {
	f, client, first, second := twoNodes(t)
	q, read := queryOf("q"), time.Now()
	forward(t, first, q, f.reads(page.Read{Rows: rowsOf("a", "b", "c", "d")}))
	first.WaitStored()
	f.change(q, rowAt(0, "A"))
	f.beat()
	served := func(at time.Duration) int64 {
		client.FlushAll(t.Context())
		if _, ok := first.Hit(q, read.Add(at)); !ok {
			t.Fatal("no hit")
		}
		first.WaitStored()
		return client.Exists(t.Context(), inRedis(q)).Val()
	}
	const after = storeInterval + time.Minute // this machine may be slow
	for i, step := range []struct {
		at   time.Duration
		want int64
	}{{storeInterval - 1, 0}, {after, 1}, {after + storeInterval - 1, 0}, {after + storeInterval, 1}} {
		if got := served(step.at); got != step.want {
			t.Errorf("step %d: %d pages stored", i, got)
		}
	}
	f.change(q, rowAt(1, "B"))
	f.beat()
	r, err := ask(second, q, fails(errOrigin))
	want{body: "A B c", source: cache.Redis}.check(t, r, err)
	if r.Entry.Next == "" {
		t.Error("it is the last page")
	}
}

// A node finds only pages of its own database and region.
func TestEntriesOfAnotherDatabaseAreNotFound(t *testing.T) {
	_, client := startRedis(t)
	copied, east := ofShop, followedAt(ofShop, 1)
	copied.Database++
	east.Region = "east"
	for i, followed := range []*fleet.Followed{followedAt(ofShop, 1), followedAt(copied, 1), east} {
		o, body := cache.Options{Redis: client, Followed: followed, TTL: time.Minute, MaxStale: time.Minute}, fmt.Sprint("page ", i)
		c := open(t, o)
		want{body: body, source: cache.Origin}.check(t, forward(t, c, queryOf("q"), brings(body)), nil)
		c.WaitStored()
		want{body: body, source: cache.Redis}.check(t, forward(t, open(t, o), queryOf("q"), fails(errOrigin)), nil)
	}
	if n := len(client.Keys(t.Context(), "listedge:*page:*").Val()); n != 3 {
		t.Errorf("%d pages", n)
	}
}

// Until a node knows its database it neither reads nor writes pages in Redis.
func TestRedisIsUsedOnceTheDatabaseIsKnown(t *testing.T) {
	_, client := startRedis(t)
	followed := &fleet.Followed{}
	c := open(t, cache.Options{Redis: client, Followed: followed, TTL: time.Minute, MaxStale: time.Minute})
	for keys := range 2 {
		forward(t, c, queryOf(fmt.Sprint(keys)), brings("page"))
		c.WaitStored()
		if n := len(client.Keys(t.Context(), "*").Val()); n != keys {
			t.Errorf("%d keys", n)
		}
		followed.SetServer(fleet.Server{Identity: ofShop, Timeline: 1})
	}
}

func TestRedisStoresNoEntryThatIsTooLarge(t *testing.T) {
	_, client := startRedis(t)
	c := open(t, cache.Options{Redis: client, TTL: time.Hour, MaxStale: time.Hour})
	for body, there := range map[int]int64{maxRedisEntry / 4: 1, maxRedisEntry: 0} {
		q := queryOf(fmt.Sprint(body))
		forward(t, c, q, brings(strings.Repeat("x", body)))
		c.WaitStored()
		if n := client.Exists(t.Context(), inRedis(q)).Val(); n != there {
			t.Errorf("%d bytes: %d entries", body, n)
		}
	}
	if s := c.Stats(); s.RedisFailures != 0 || s.RedisDropped != 1 {
		t.Errorf("%+v", s)
	}
}

// A node does not read a value of Redis that is too long, whoever wrote it.
func TestAValueThatIsTooLongIsNotRead(t *testing.T) {
	_, client := startRedis(t)
	c := open(t, cache.Options{Redis: client, TTL: time.Hour, MaxStale: time.Hour})
	const size = 64 << 20
	if err := client.SetRange(t.Context(), inRedis(queryOf("q")), size-1, "x").Err(); err != nil {
		t.Fatal(err)
	}
	before := sent(t, client)
	if r, err := ask(c, queryOf("q"), fails(errOrigin)); !errors.Is(err, errOrigin) {
		t.Errorf("%+v, %v", r, err)
	}
	if n := sent(t, client) - before; n > size/4 {
		t.Errorf("%d bytes were sent", n)
	}
	checkRedis(t, c, 1, 0, 1)
}

// sent returns how many bytes the server has sent so far.
func sent(t *testing.T, client *redis.Client) int {
	t.Helper()
	info := client.Info(t.Context(), "stats").Val()
	n, err := strconv.Atoi(regexp.MustCompile(`total_net_output_bytes:(\d+)`).FindStringSubmatch(info)[1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}
