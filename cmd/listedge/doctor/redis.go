package doctor

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"listedge/cmd/listedge/node"
	"listedge/edge/admin"
	"listedge/internal/changefeed"
	"listedge/limiter"
	originadmin "listedge/origin/admin"
)

// redisTimeout bounds all checks of Redis.
const redisTimeout = 5 * time.Second

// checkRedis checks the server that nodes write to, and reads what it says of the fleet that
// follows the database.
func (r *report) checkRedis(ctx context.Context, url string, followed *changefeed.Followed, says map[string]string) {
	o, _ := node.ParseRedisURL(url) // the flags have been checked
	ctx, cancel := context.WithTimeout(ctx, redisTimeout)
	defer cancel()
	client := node.NewRedisClient(o)
	defer client.Close()
	began := time.Now()
	if err := client.Ping(ctx).Err(); err != nil {
		why, _ := admin.Explain(err)
		r.fail("redis", why, node.RedisRemedy(err))
		return
	}
	took := time.Since(began).Round(time.Microsecond)
	if why, remedy := refusal(ctx, client, followed.Prefix()+"doctor-"+rand.Text()); why != "" {
		r.fail("redis", why, remedy)
	} else {
		r.ok("redis", fmt.Sprintf("the user has all rights that a node needs, and a PING takes %s with its connection", took))
		r.readRedis(ctx, client, followed, says)
	}
	text, err := client.Info(ctx).Result()
	if err != nil {
		r.warn("redis settings", "the user may not run INFO: "+err.Error(), "allow INFO, so that settings can be checked")
		return
	}
	r.checkRedisInfo(node.ParseInfo(text))
}

// readRedis reads what the nodes have in Redis. If a right is missing, that is another finding.
func (r *report) readRedis(ctx context.Context, client redis.UniversalClient, followed *changefeed.Followed, says map[string]string) {
	if identity, known := followed.Identity(); known {
		if epoch, err := changefeed.NewRedis(client, followed).Epoch(ctx); err == nil {
			says["log of changes"] = "epoch " + cmp.Or(epoch, "none")
			followed.ObserveEpoch(epoch)
		}
		other, _ := changefeed.NewClaim(client, followed).Other(ctx)
		r.judge("fleet", other != "", originadmin.Fail, "follows "+identity.String(),
			fmt.Sprintf("the fleet follows %s, and --database-url names %s", other, identity), node.OtherDatabaseRemedy)
	}
	if err := followed.OldTimeline(); err != nil {
		r.fail("timeline", err.Error(), followed.OldTimelineRemedy())
	}
	if nodes, err := limiter.LiveNodes(ctx, client, followed.Prefix()); err == nil {
		says["size"] = fmt.Sprint(nodes)
	}
	if entries, err := node.ReadRoster(ctx, client, followed.Prefix()); err == nil {
		var views []view
		for _, e := range entries {
			views = append(views, view{e.Name, map[string]string{"version": versionText(e.NodeState)}})
		}
		versions, same := compare(views, "version")
		text := "none runs"
		if len(views) > 0 {
			text = fmt.Sprintf("%d known: %s", len(views), versions)
		}
		r.judge("redis nodes", !same, originadmin.Warn, text, text, "finish the upgrade: docs/UPGRADING.md")
	}
}

// checkRedisInfo judges what INFO says.
func (r *report) checkRedisInfo(info map[string]string) {
	version := info["redis_version"]
	text := version
	if valkey := info["valkey_version"]; valkey != "" {
		text = "Valkey " + valkey + ", as Redis " + version
	}
	var major, minor int
	_, _ = fmt.Sscanf(version, "%d.%d", &major, &minor)
	const oldest = 602 // which has XTRIM MINID
	r.judge("redis version", 100*major+minor < oldest, originadmin.Fail, text, version+" is too old", "use Redis 6.2 or later")
	eviction := node.EvictionFailure(info)
	r.judge("redis eviction", eviction != nil, originadmin.Warn, info["maxmemory_policy"],
		fmt.Sprint("Redis may evict buckets and the log of changes: ", eviction), node.EvictionRemedy)
	r.judge("redis maxmemory", info["maxmemory"] == "0", originadmin.Warn, info["maxmemory_human"],
		"not set: pages may take all memory of the machine", "set maxmemory")
}

// refusal sends all commands of nodes, with keys that begin with a prefix that no node uses. It
// returns what is refused, and what to do: for lack of a right, of memory, or by a server that is
// no master.
func refusal(ctx context.Context, client redis.UniversalClient, prefix string) (why, remedy string) {
	var lacking, uses []string
	var refused error
	for _, use := range node.RedisUses(prefix) {
		for _, command := range use.Commands {
			switch err := client.Do(ctx, command...).Err(); {
			case err == nil, errors.Is(err, redis.Nil), redis.HasErrorPrefix(err, "NOSCRIPT"):
			case redis.IsPermissionError(err):
				right := "~listedge:*"
				if _, named, ok := strings.Cut(err.Error(), "run the '"); ok {
					name, _, _ := strings.Cut(named, "'")
					right = "+" + name
				}
				lacking = append(lacking, right)
			default:
				uses, refused = append(uses, use.Name), err
			}
		}
	}
	switch slices.Sort(lacking); {
	case len(lacking) > 0:
		return "the user lacks " + strings.Join(slices.Compact(lacking), " "), "ACL SETUSER with all rights that docs/SECURITY.md lists"
	case refused != nil:
		why, _ = admin.Explain(refused)
		return strings.Join(slices.Compact(uses), ", ") + ": " + why, node.RedisRemedy(refused)
	}
	return "", ""
}
