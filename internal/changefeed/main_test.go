package changefeed_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"listedge/internal/changefeed"
	"listedge/internal/fleet"
	"listedge/internal/list"
	"listedge/internal/sandbox/redistest"
)

type (
	Change    = changefeed.Change
	Entry     = changefeed.Entry
	Heartbeat = changefeed.Heartbeat
	Log       = changefeed.Log
	Position  = changefeed.Position
	Proof     = changefeed.Proof
	Snapshot  = changefeed.Snapshot
	Table     = changefeed.Table
)

func TestMain(m *testing.M) {
	redistest.Silence()
	goleak.VerifyTestMain(m)
}

// patient is a limit for what is not about the limit: for hangs, on however
// slow a machine.
const patient = time.Minute

var startRedis = redistest.Start

var ofShop = fleet.Identity{System: "7400000000000000001", Database: 16384, Name: "shop"}

// followed is of a node that has found the database.
func followed(region string, identity fleet.Identity) *fleet.Followed {
	f := &fleet.Followed{Region: region}
	f.SetServer(fleet.Server{Identity: identity, Timeline: 1})
	return f
}

func shop() *fleet.Followed { return followed("", ofShop) }

// redisLog is the shop's log of lists, or of the built-in ones.
func redisLog(client redis.UniversalClient, lists ...*list.Set) *changefeed.Redis {
	return changefeed.NewRedis(changefeed.RedisOptions{Client: client, Followed: shop(), Lists: append(lists, list.BuiltIn())[0]})
}
