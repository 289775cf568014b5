package changefeed_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"listedge/internal/changefeed"
	"listedge/internal/fleet"
	"listedge/internal/list"
	"listedge/internal/list/listtest"
	"listedge/internal/sandbox/sandboxtest"
)

// maxID is as long as a tenant is by default.
const maxID = "ffffffff-ffff-ffff-ffff-ffffffffffff"

// logOfA is the key of the log of epoch a.
const logOfA = "listedge:{changes}:log:a"

// Until it is known what is followed, nothing is read and nothing is written.
func TestRedisOfANodeThatKnowsNoDatabase(t *testing.T) {
	_, client := startRedis(t)
	log := changefeed.NewRedis(changefeed.RedisOptions{Client: client, Followed: &fleet.Followed{}, Lists: list.BuiltIn()})
	if _, err := log.Epoch(inTime(t)); err == nil {
		t.Error("no error")
	}
	if keys := client.Keys(inTime(t), "*").Val(); len(keys) > 0 {
		t.Error(keys)
	}
}

// Fleets that follow different databases, or have different regions, share a Redis and no
// key in it.
func TestFleetsAreApartInRedis(t *testing.T) {
	_, client := startRedis(t)
	all := []*changefeed.Redis{}
	for _, of := range []*fleet.Followed{shop(), followed("east", ofShop), followed("", fleet.Identity{System: ofShop.System, Database: 16385}),
		followed("", fleet.Identity{System: "7400000000000000002", Database: ofShop.Database})} {
		log := changefeed.NewRedis(changefeed.RedisOptions{Client: client, Followed: of, Lists: list.BuiltIn()})
		turn(t, log, fmt.Sprint("of fleet ", len(all)))
		all = append(all, log)
	}
	for i, log := range all {
		if epoch, err := log.Epoch(inTime(t)); epoch != fmt.Sprint("of fleet ", i) || err != nil {
			t.Errorf("%d: %q, %v", i, epoch, err)
		}
	}
}

// While Redis fails, each call returns an error in time. Afterwards the log goes on.
func TestRedisAway(t *testing.T) {
	server, client := startRedis(t)
	log := redisLog(client)
	const limit = 200 * time.Millisecond
	calls := map[string]func(context.Context) error{
		"Epoch":    func(ctx context.Context) error { _, err := log.Epoch(ctx); return err },
		"SetEpoch": func(ctx context.Context) error { return log.SetEpoch(ctx, "", "a") },
		"Append":   func(ctx context.Context) error { return log.Append(ctx, "a", beat(9, 9)) },
		"Last":     func(ctx context.Context) error { _, err := log.Last(ctx, "a"); return err },
		"Read":     func(ctx context.Context) error { _, err := readLog(ctx, log, "a", Position{9, 9}, patient); return err },
		"Trim":     func(ctx context.Context) error { return log.Trim(ctx, "a", Position{1, 1}) },

		"Checkpoint":    func(ctx context.Context) error { _, err := log.Checkpoint(ctx, "a"); return err },
		"SetCheckpoint": func(ctx context.Context) error { return log.SetCheckpoint(ctx, &changefeed.Checkpoint{Epoch: "a"}) },
	}
	fail := func(t *testing.T) {
		t.Helper()
		for name, call := range calls {
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			began := time.Now()
			if err := call(ctx); err == nil || errors.Is(err, changefeed.ErrFenced) {
				t.Errorf("%s: %v", name, err)
			}
			if took := time.Since(began); took > limit+patient/10 {
				t.Errorf("%s took %s", name, took)
			}
			cancel()
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	add(t, log, "a", beat(1, 1), beat(1, 2))
	turn(t, log, "a")
	must(client.FlushAll(inTime(t)).Err())
	if epoch, err := log.Epoch(inTime(t)); err != nil || epoch != "" {
		t.Fatalf("flushed: epoch %q, %v", epoch, err)
	}
	ends(t, log, "a", Position{})
	add(t, log, "a", beat(1, 3)) // a reader that was up to date misses nothing
	holds(t, log, "a", Position{1, 2}, beat(1, 3))

	must(server.Freeze())
	fail(t)
	must(server.Thaw())
	last, err := log.Last(inTime(t), "a") // what failed may have happened
	if err != nil || last.Compare(Position{1, 3}) < 0 {
		t.Fatal(last, err)
	}

	must(server.Kill())
	fail(t)
	must(server.Restart(inTime(t)))
	sandboxtest.Within(t, patient, "connections that died leave the pool", func() bool { _, err := log.Last(inTime(t), "a"); return err == nil })
	ends(t, log, "a", Position{})
	add(t, log, "a", beat(1, 4))
	turn(t, log, "a") // its script was lost, too
}

// A checkpoint that cannot be read is none.
func TestRedisHasACheckpointThatCannotBeRead(t *testing.T) {
	_, client := startRedis(t)
	log := redisLog(client)
	const key = "listedge:{changes}:checkpoint:a"
	none := func(what string) {
		t.Helper()
		if c, err := log.Checkpoint(inTime(t), "a"); c != nil || err != nil {
			t.Errorf("%s: %+v, %v", what, c, err)
		}
	}
	all := changefeed.Checkpoint{Epoch: "a", Lists: list.BuiltIn().Lists, Last: make([]changefeed.LastChange, 2)}
	store := func() (body string) {
		t.Helper()
		if err := log.SetCheckpoint(inTime(t), &all); err != nil {
			t.Fatal(err)
		}
		if ttl := client.PTTL(inTime(t), key).Val(); ttl < 50*time.Minute || ttl > time.Hour {
			t.Errorf("it is kept for %s", ttl)
		}
		return client.Get(inTime(t), key).Val()
	}
	body := store()
	for n := range len(body) {
		if (n-35-2*16)%24 == 0 && n > 35+16 {
			continue // it has fewer tables
		}
		client.Set(inTime(t), key, body[:n], 0)
		none(fmt.Sprint(n, " bytes of ", len(body)))
	}
	client.Set(inTime(t), key, "0"+body[1:], 0)
	none("another version")
	client.Del(inTime(t), key)
	client.SAdd(inTime(t), key, "x")
	none("a set")
	store()
}

// What cannot be read is known to be there, and hides nothing behind it.
func TestRedisHoldsWhatCannotBeDecoded(t *testing.T) {
	_, client := startRedis(t)
	log := redisLog(client)
	noRows, rows := "\n\x04\x00", "\n\x04\x01\x03\x01k"
	unreadable := []string{"", "3", "3{", "3null", "3[]", `3"x"`, `3{"h":{"l":-1}}`, `3{"h":{"l":1},"c":{"x":"1"}}`, "3{\"c\":{\"x\":1}}\nAAAA",
		`3{"c":{"x":1,"p":["0"]}}` + noRows, `3{"c":{"x":1,"p":["/a"]}}`, `3{"c":{"x":1,"p":["/a"]}}` + rows[:5], `3{"c":{"x":1,"p":["/a"]}}` + rows + "x",
		`3{"c":{"x":1,"p":["AAAAAAAAAAAAAAAAAAAAA!/a"]}}` + noRows, `3{"c":{"x":1,"p":["AAAAAAAAAAAAAAAAAAAAAAa"]}}` + noRows,
		`3{"h":{"l":1,"u":[{"x":1,"p":["a"]}]}}`, `2{"h":{"l":1}}`, `{"h":{"l":1}}`, "\xff\x00"}
	want := []Entry{beat(1, 1)}
	add(t, log, "a", want...)
	for n, body := range unreadable {
		at := Position{1, uint64(n + 2)}
		if err := client.XAdd(inTime(t), &redis.XAddArgs{Stream: logOfA, ID: at.String(), Values: []any{"e", body}}).Err(); err != nil {
			t.Fatal(err)
		}
		want = append(want, Entry{Position: at})
	}
	if err := client.XAdd(inTime(t), &redis.XAddArgs{Stream: logOfA, ID: "2-1", Values: []any{"another field", "{}"}}).Err(); err != nil {
		t.Fatal(err)
	}
	want = append(want, Entry{Position: Position{2, 1}}, beat(2, 2))
	add(t, log, "a", beat(2, 2))
	holds(t, log, "a", Position{}, want...)
	for _, e := range want {
		if e.Undecodable() != (e.Heartbeat == nil) {
			t.Errorf("%+v", e)
		}
	}
}

// Redis removes a log to which no follower writes any more, and no other.
func TestRedisForgetsLogsThatNobodyWritesTo(t *testing.T) {
	_, client := startRedis(t)
	log := redisLog(client)
	const logLife = time.Hour
	life := func() time.Duration { return client.TTL(inTime(t), logOfA).Val() }
	add(t, log, "a", beat(1, 1))
	if is := life(); is <= logLife/2 || is > logLife {
		t.Errorf("%s after the first entry of a term", is)
	}
	for n := uint64(2); n < 500; n += 7 {
		if err := client.Expire(inTime(t), logOfA, logLife/2).Err(); err != nil {
			t.Fatal(err)
		}
		for from := n; n < from+100; n += 7 { // whatever the size of batches
			if err := log.Append(inTime(t), "a", beat(1, n), beat(1, n+1), beat(1, n+2), beat(1, n+3), beat(1, n+4), beat(1, n+5), beat(1, n+6)); err != nil {
				t.Fatal(err)
			}
		}
		if is := life(); is <= logLife/2 {
			t.Errorf("%s at %d", is, n)
		}
	}
}

// A heartbeat names the Redis server to which it was written, and no entry of another server as
// its predecessor. So readers get no proof from a replica, from a master that became one, or
// from a server that was replaced.
func TestHeartbeatsNameTheirServer(t *testing.T) {
	master, client := startRedis(t)
	_, other := startRedis(t)
	here, there := redisLog(client), redisLog(other)
	read := func(log *changefeed.Redis) (server string, last *Heartbeat) {
		t.Helper()
		reader, server, err := log.Reader(inTime(t))
		if err != nil {
			t.Fatal(err)
		}
		defer reader.Close()
		entries, _, err := reader.Read(inTime(t), "a", Position{}, time.Millisecond)
		if err != nil || len(entries) == 0 {
			t.Fatal(entries, err)
		}
		return server, entries[len(entries)-1].Heartbeat
	}
	add(t, here, "a", heartbeat(1, 1, at(1, 0), "1:1:"), heartbeat(1, 2, at(1, 1), "1:1:"))
	server, h := read(here)
	if server == "" || h.LogServer != server || h.After != at(1, 1) {
		t.Errorf("%q has a heartbeat of %q after %s", server, h.LogServer, h.After)
	}
	host, port, _ := net.SplitHostPort(master.Addr())
	if err := other.ReplicaOf(inTime(t), host, port).Err(); err != nil {
		t.Fatal(err)
	}
	sandboxtest.Within(t, patient, "the replica has the log", func() bool { return other.Exists(inTime(t), logOfA).Val() == 1 })
	if replica, h := read(there); replica == server || h.LogServer != server {
		t.Errorf("%q has a heartbeat of %q", replica, h.LogServer)
	}
	if err := other.ReplicaOf(inTime(t), "no", "one").Err(); err != nil {
		t.Fatal(err)
	}
	add(t, there, "a", heartbeat(1, 3, at(1, 2), "1:1:"))
	if promoted, h := read(there); h.LogServer != promoted || h.After != (Position{}) {
		t.Errorf("%q has a heartbeat of %q after %s, which another acknowledged", promoted, h.LogServer, h.After)
	}
	add(t, there, "a", heartbeat(1, 4, at(1, 2), "1:1:"))
	if _, h := read(there); h.After != (Position{}) {
		t.Errorf("after %s, which another acknowledged", h.After)
	}
	add(t, there, "a", heartbeat(1, 5, at(1, 3), "1:1:"))
	if _, h := read(there); h.After != at(1, 3) {
		t.Errorf("after %s", h.After)
	}
}

// What a change takes in Redis by MEMORY USAGE, for each row: one row takes little more
// than its name and its text. The transactions' ids and LSNs are those of a server of
// some years.
func TestARowTakesFewBytes(t *testing.T) {
	const changes, batch = 10_000, 500
	item := func(name string) list.Row { // whose text has 700 bytes
		row := listtest.Item(1, "name", name, "description", "")
		return listtest.Item(1, "name", name, "description", strings.Repeat("x", 700-row.TextSize()))
	}
	for _, test := range []struct {
		name string
		rows int // of each change
		row  list.Row
		most int // bytes a row
	}{
		{"a name of 40 characters", 1, item(strings.Repeat("n", 40)), 1100},
		{"a name of 80 Han characters", 1, item(strings.Repeat("茶", 80)), 1375},
		{"gone", 1, list.GoneRow(listtest.Key(listtest.ID(1))), 200},
		{"ten rows", 10, item(strings.Repeat("n", 40)), 900},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, client := startRedis(t)
			log := redisLog(client)
			var entries []Entry
			for n := uint64(1); n <= changes; n++ {
				entries = append(entries, Entry{Position: Position{4_000_000_000, n}, Change: &Change{XID: 4_000_000_000 + n, LSN: 800_000_000_000 + n,
					CommittedAt: 1 << 50, Touched: []changefeed.Touched{{Table: Table{List: listtest.Items, Tenant: maxID},
						Rows: slices.Repeat([]list.Row{test.row}, test.rows)}}}})
			}
			for some := range slices.Chunk(entries, batch) {
				if err := log.Append(inTime(t), "a", some...); err != nil {
					t.Fatal(err)
				}
			}
			first, err := client.XRangeN(inTime(t), logOfA, "-", "+", 1).Result()
			if err != nil {
				t.Fatal(err)
			}
			used, err := client.MemoryUsage(inTime(t), logOfA, 0).Result()
			if err != nil {
				t.Fatal(err)
			}
			is := int(used) / changes / test.rows
			t.Logf("%d bytes a row; the entry has %d", is, len(first[0].Values["e"].(string)))
			if is > test.most {
				t.Errorf("%d bytes a row, want at most %d", is, test.most)
			}
		})
	}
}
