package cache

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"listedge/cache/freshness"
	"listedge/internal/changefeed"
)

func TestCodecKeepsWhichServerWasRead(t *testing.T) {
	for _, view := range []freshness.ReadPoint{{}, {Run: "1700000000.123456"}, {Server: "7400000000000000001/2", LSN: 7}} {
		p := NewEntry([]byte("body"), "")
		p.ReadPoint = view
		q, _, err := decode(p.encode(keyOf("q"), time.Minute, time.Now()), keyOf("q"), time.Minute, time.Now())
		if err != nil || q.ReadPoint.Run != view.Run || q.ReadPoint.Server != view.Server || q.ReadPoint.LSN != view.LSN {
			t.Errorf("%+v came back as %+v, %v", view, q.ReadPoint, err)
		}
	}
}

// A node finds only pages of its own database and region, also if it judges pages by age.
func TestEntriesOfAnotherDatabaseAreNotFound(t *testing.T) {
	_, client := startRedis(t)
	byAge := func(followed *changefeed.Followed) *Cache {
		return open(t, Options{Redis: client, Followed: followed, TTL: time.Minute, MaxStale: time.Minute})
	}
	copied := ofShop
	copied.Database++
	east := followedAt(ofShop, 1)
	east.Region = "east"
	for i, followed := range []*changefeed.Followed{followedAt(ofShop, 1), followedAt(copied, 1), east} {
		c, body := byAge(followed), fmt.Sprint("page ", i)
		want{body: body, source: Origin}.check(t, forward(t, c, keyOf("q"), brings(body)), nil)
		stored(t, c)
		c = byAge(followed)
		want{body: body, source: Redis}.check(t, forward(t, c, keyOf("q"), fails(errOrigin)), nil)
	}
	if n := len(client.Keys(t.Context(), "listedge:*page:*").Val()); n != 3 {
		t.Errorf("%d pages", n)
	}
}

// Until a node knows its database it neither reads nor writes pages in Redis. The database
// that it knows may change.
func TestRedisIsUsedOnceTheDatabaseIsKnown(t *testing.T) {
	_, client := startRedis(t)
	followed := &changefeed.Followed{}
	c := open(t, Options{Redis: client, Followed: followed, TTL: time.Minute, MaxStale: time.Minute})
	asked := 0
	keys := func() int {
		t.Helper()
		asked++
		forward(t, c, keyOf(fmt.Sprint(asked)), brings("page"))
		stored(t, c)
		return len(client.Keys(t.Context(), "*").Val())
	}
	if n := keys(); n != 0 {
		t.Errorf("%d keys of no database", n)
	}
	checkRedis(t, c, 0, 0, 0)
	followed.SetServer(ofShop, 1)
	if n := keys(); n != 1 {
		t.Errorf("%d keys", n)
	}
	restored := ofShop
	restored.System = "7400000000000000002"
	followed.SetServer(restored, 1)
	if n := keys(); n != 2 {
		t.Errorf("%d keys", n)
	}
}

func epochAt(timeline uint32, random string) string {
	return changefeed.EpochName{Identity: ofShop.Digest(), Timeline: timeline, Run: "run", Published: "published", Random: random}.String()
}

// ofRun is a fill from a server of this run.
func (b *fakeFollower) ofRun(body, run string) Fill {
	primary := b.brings(body).Primary
	return Fill{Primary: func(ctx context.Context, of string) (FillResult, error) {
		f, err := primary(ctx, of)
		f.Run = run
		return f, err
	}}
}

// If a node's server is on an older timeline than the fleet follows, the node stores none
// of its pages, with or without proof.
func TestAServerOnAnOldTimelineIsTheWrongServer(t *testing.T) {
	b := startFollower(t)
	b.beginTerm(epochAt(2, "a"))
	followed := followedAt(ofShop, 1)
	c, _ := b.open(Options{Followed: followed, TTL: time.Minute, MaxStale: time.Minute, Bound: testBound})
	eventually(t, "trusted", mode(c, ModeFollowed))
	refused := func() uint64 { return c.Stats().Rejected[freshness.WrongServer.String()] }
	read := func(query, run string) {
		t.Helper()
		_, _ = c.Forward(keyOf(query), listA, b.ofRun("page", run))
	}
	read("q", "old primary's")
	if n := refused(); n != 1 {
		t.Errorf("refused with proof: %d", n)
	}
	b.beSilent(true)
	eventually(t, "untrusted", mode(c, ModeUntrusted))
	read("r", "old primary's")
	if n := refused(); n != 2 {
		t.Errorf("refused without proof: %d", n)
	}
	read("s", "") // of the run that was followed: the node's other connection was not renewed yet
	if n := refused(); n != 2 {
		t.Errorf("the new primary is refused: %d", n)
	}
	followed.SetServer(ofShop, 2)
	read("t", "any")
	if n := refused(); n != 2 {
		t.Errorf("refused on the new timeline: %d", n)
	}
}

// misled is a log whose current epoch another follower has set.
type misled struct {
	changefeed.Log
	epoch atomic.Pointer[string] // nil = the log's own
}

func (m *misled) Epoch(ctx context.Context) (string, error) {
	if epoch := m.epoch.Load(); epoch != nil {
		return *epoch, nil
	}
	return m.Log.Epoch(ctx)
}

// A node follows no epoch of an older timeline than the newest that it has followed. Such
// an epoch appears if Redis loses the epoch and the old primary's follower sets its own.
func TestAnOldTimelineIsNotFollowedAgain(t *testing.T) {
	b := startFollower(t)
	b.beginTerm(epochAt(2, "a"))
	log := &misled{Log: b.log}
	c, feed := openFollowing(t, log, Options{Followed: followedAt(ofShop, 0), TTL: time.Minute, MaxStale: time.Minute, Bound: testBound}, b)
	eventually(t, "trusted", mode(c, ModeFollowed))
	before := feed.Stats()
	old := epochAt(1, "b")
	log.epoch.Store(&old)
	eventually(t, "many more entries", func() bool { return feed.Stats().Entries > before.Entries+50 })
	if s := feed.Stats(); s.Epoch != epochAt(2, "a") || s.Resets["epoch"] != before.Resets["epoch"] {
		t.Errorf("it follows %s: %v", s.Epoch, s.Resets)
	}
}

// A node whose server was promoted stops following the epoch of the old timeline, even if
// another follower continues it, and waits for the new one.
func TestANodeOfANewPrimaryLeavesTheOldTimeline(t *testing.T) {
	b := startFollower(t)
	b.beginTerm(epochAt(1, "a"))
	followed := followedAt(ofShop, 1)
	c, _ := b.open(Options{Followed: followed, TTL: time.Minute, MaxStale: time.Minute, Bound: patient})
	eventually(t, "trusted", mode(c, ModeFollowed))
	followed.SetServer(ofShop, 2)
	eventually(t, "untrusted", mode(c, ModeUntrusted))
	b.beginTerm(epochAt(2, "b"))
	eventually(t, "trusted", mode(c, ModeFollowed))
}

// Without proof, a node does not share an entry that another node has just stored in
// Redis: it does not know which server that node read.
func TestUnprovenEntriesOfRedisAreNotShared(t *testing.T) {
	_, client := startRedis(t)
	b, c := followed(t, Options{Redis: client})
	b.beSilent(true)
	eventually(t, "untrusted", mode(c, ModeUntrusted))
	p := NewEntry([]byte("another node's"), "next of another node's")
	if err := client.Set(t.Context(), inRedis(keyOf("q")), p.encode(keyOf("q"), 2*time.Minute, time.Now()), 2*time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	r, err := c.Forward(keyOf("q"), listA, b.brings("this node's"))
	want{body: "this node's", source: Origin, hadStale: true}.check(t, r, err)
}
