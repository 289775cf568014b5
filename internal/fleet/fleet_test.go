package fleet_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"listedge/internal/fleet"
	"listedge/internal/sandbox/redistest"
)

var (
	ofShop  = fleet.Identity{System: "7400000000000000001", Database: 16384, Name: "shop"}
	ofCopy  = fleet.Identity{System: "7400000000000000001", Database: 16385, Name: "copy"}
	another = []fleet.Identity{
		ofCopy,
		{System: "7400000000000000002", Database: 16384, Name: "shop"},
	}
)

func followed(identity fleet.Identity, timeline uint32) *fleet.Followed {
	f := &fleet.Followed{}
	f.SetServer(fleet.Server{Identity: identity, Timeline: timeline})
	return f
}

// shop is a node's that has found the database.
func shop() *fleet.Followed { return followed(ofShop, 1) }

func epochOf(identity fleet.Identity, timeline uint32) string {
	return fleet.EpochName{identity.Digest(), timeline, "run", "published", "random"}.String()
}

func TestIdentitiesAreToldApart(t *testing.T) {
	renamed := ofShop
	renamed.Name = "store"
	if renamed.Digest() != ofShop.Digest() {
		t.Error("a database that is renamed is another one")
	}
	for _, i := range another {
		if i.Digest() == ofShop.Digest() || i.String() == ofShop.String() {
			t.Errorf("%v is %v", i, ofShop)
		}
	}
}

func TestEpochNames(t *testing.T) {
	n := fleet.EpochName{"shop", 4294967295, "run", "published", "random"}
	if got, ok := fleet.ParseEpoch(n.String()); !ok || got != n {
		t.Errorf("%+v, %t", got, ok)
	}
	for _, other := range []string{"", "a", "run.published.random", "a.x.b.c.d", "a.-1.b.c.d", "a.4294967296.b.c.d", "a.1.b.c.d.e"} {
		if got, ok := fleet.ParseEpoch(other); ok {
			t.Errorf("%q is %+v", other, got)
		}
	}
}

// A node reads no log of a timeline older than that of its own server, or than
// the newest that it has seen.
func TestWhichEpochsAreRead(t *testing.T) {
	for _, c := range []struct {
		name     string
		identity fleet.Identity // of the node
		server   uint32
		seen     []string
		epoch    string
		readable bool
		old      bool // the server is on an old timeline
	}{
		{"its own", ofShop, 1, nil, epochOf(ofShop, 1), true, false},
		{"a newer one", ofShop, 1, nil, epochOf(ofShop, 2), true, true},
		{"one of before its server was promoted", ofShop, 2, nil, epochOf(ofShop, 1), false, false},
		{"one that the fleet has left", ofShop, 1, []string{epochOf(ofShop, 2)}, epochOf(ofShop, 1), false, true},
		{"the newest again", ofShop, 1, []string{epochOf(ofShop, 2), epochOf(ofShop, 1)}, epochOf(ofShop, 2), true, true},
		{"one of another database", ofShop, 1, nil, epochOf(ofCopy, 1), false, false},
		{"another database has been seen", ofShop, 1, []string{epochOf(ofCopy, 9)}, epochOf(ofShop, 1), true, false},
		{"its server is in recovery", ofShop, 0, nil, epochOf(ofShop, 2), true, false},
		{"a name of another form", ofShop, 1, []string{epochOf(ofShop, 2)}, "e", true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := followed(c.identity, c.server)
			for _, epoch := range c.seen {
				f.ObserveEpoch(epoch)
			}
			if got := f.ObserveEpoch(c.epoch); got != c.readable {
				t.Errorf("readable: %t", got)
			}
			err := f.OldTimeline()
			if (err != nil) != c.old {
				t.Error(err)
			}
			if timeline := (*fleet.TimelineError)(nil); c.old &&
				(!errors.As(err, &timeline) || !strings.Contains(f.OldTimelineRemedy(), "listedge:{changes}:"+ofShop.Digest()+":epoch")) {
				t.Error(err)
			}
		})
	}
}

// What was seen of another database says nothing about the one that is found
// behind the same URL, and a server that was promoted is on no old timeline.
func TestWhatIsFoundAnew(t *testing.T) {
	f := shop()
	f.ObserveEpoch(epochOf(ofShop, 3))
	if f.OldTimeline() == nil {
		t.Error("timeline 1 is not old")
	}
	f.SetServer(fleet.Server{Identity: ofCopy, Timeline: 1})
	if err := f.OldTimeline(); err != nil || !f.ObserveEpoch(epochOf(ofCopy, 1)) || f.ObserveEpoch(epochOf(ofShop, 3)) {
		t.Errorf("of another database: %v", err)
	}
	if err := f.Refuse(fleet.Server{Identity: ofCopy, Timeline: 1}, ""); err != nil {
		t.Errorf("its answer: %v", err)
	}
	f.SetServer(fleet.Server{Identity: ofShop, Timeline: 1})
	f.ObserveEpoch(epochOf(ofShop, 3))
	f.SetServer(fleet.Server{Identity: ofShop, Timeline: 3})
	if err := f.OldTimeline(); err != nil {
		t.Error(err)
	}
}

func TestWhichAnswersAreRefused(t *testing.T) {
	known := followed(ofShop, 1)
	known.ObserveEpoch(epochOf(ofShop, 3))
	answer := func(startedAt string, timeline uint32) fleet.Server {
		return fleet.Server{Identity: fleet.Identity{Name: "shop"}, StartedAt: startedAt, Timeline: timeline}
	}
	for _, c := range []struct {
		name    string
		of      *fleet.Followed
		proven  string // when the followed primary was started
		by      fleet.Server
		refused string
	}{
		{"nothing is known", &fleet.Followed{}, "", answer("1", 1), ""},
		{"nothing is known, a standby", &fleet.Followed{}, "", answer("1", 0), "is a standby"},
		{"the followed run", known, "1", answer("1", 3), ""},
		{"the followed run, in recovery", known, "1", answer("1", 0), "is a standby"},
		{"another run", known, "1", answer("2", 3), "is not the server that is followed"},
		{"another run of a later timeline", known, "1", answer("2", 4), "is not the server that is followed"},
		{"another database of the server", known, "1", fleet.Server{Identity: fleet.Identity{Name: "copy"}, StartedAt: "1", Timeline: 3},
			"is database copy, and not shop"},
		{"nothing proven, another database", known, "", fleet.Server{Identity: fleet.Identity{Name: "copy"}, StartedAt: "2", Timeline: 3},
			"is database copy, and not shop"},
		{"nothing proven, a restart", known, "", answer("2", 3), ""},
		{"nothing proven, a later timeline", known, "", answer("2", 4), ""},
		{"nothing proven, an earlier timeline", known, "", answer("2", 2), "is on timeline 2; the fleet follows timeline 3"},
		{"nothing proven, a standby", known, "", answer("2", 0), "is a standby"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := c.of.Refuse(c.by, c.proven); (err != nil) != (c.refused != "") || err != nil && !strings.Contains(err.Error(), c.refused) {
				t.Error(err)
			}
		})
	}
}

// A node joins its fleet unless that follows another database. One that was refused takes
// over the name only after it has found no record for claimLife.
func TestClaims(t *testing.T) {
	_, client := redistest.Start(t)
	copied, ofEast := followed(ofCopy, 1), followed(ofCopy, 1)
	ofEast.Region = "east"
	ours, theirs := fleet.NewClaim(client, shop()), fleet.NewClaim(client, copied)
	for _, step := range []struct {
		name    string
		happens func()
		claim   *fleet.Claim
		other   string
	}{
		{"the first node", nil, ours, ""},
		{"another database", nil, theirs, ofShop.String()},
		{"another region", nil, fleet.NewClaim(client, ofEast), ""},
		{"a second node", nil, fleet.NewClaim(client, shop()), ""},
		{"Redis is empty", func() { client.FlushAll(t.Context()) }, theirs, ofShop.String()},
		{"the fleet renews the record", nil, ours, ""},
		{"the fleet is back", nil, theirs, ofShop.String()},
		{"Redis is empty again", func() { client.FlushAll(t.Context()); theirs.Renew(t.Context()) }, theirs, ofShop.String()},
		{"the fleet has ended", func() { theirs.Age() }, theirs, ""},
		{"the old database's node", nil, fleet.NewClaim(client, shop()), ofCopy.String()},
		{"the fleet returns after its name was taken", nil, ours, ofCopy.String()},
		{"the one that took it", nil, theirs, ""},
		{"its database is replaced", func() { copied.SetServer(fleet.Server{Identity: ofShop, Timeline: 1}) }, theirs, ""},
		{"the fleet follows it again", nil, ours, ""},
	} {
		if step.happens != nil {
			step.happens()
		}
		if other := step.claim.Renew(t.Context()); other != step.other {
			t.Fatalf("%s: %q", step.name, other)
		}
	}
}

// afterRead calls a function after the first GET.
type afterRead struct {
	once sync.Once
	call func()
}

func (a *afterRead) DialHook(next redis.DialHook) redis.DialHook { return next }

func (a *afterRead) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, c redis.Cmder) error {
		err := next(ctx, c)
		if c.Name() == "get" {
			a.once.Do(a.call)
		}
		return err
	}
}

func (a *afterRead) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// Of nodes that start at once without a record, those of one database join, and the others know it at once: their next calls come late.
func TestNodesOfTwoDatabasesStartAtOnce(t *testing.T) {
	for _, first := range []*fleet.Followed{shop(), followed(ofCopy, 1)} {
		_, client := redistest.Start(t)
		other := redis.NewClient(client.Options())
		defer func() { _ = other.Close() }()
		ours, want := fleet.NewClaim(client, shop()), ""
		if first.Digest() != shop().Digest() {
			want = ofCopy.String()
		}
		client.AddHook(&afterRead{call: func() { fleet.NewClaim(other, first).Renew(t.Context()) }})
		if found := ours.Renew(t.Context()); found != want {
			t.Errorf("%q, want %q", found, want)
		}
	}
}
