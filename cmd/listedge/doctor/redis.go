package doctor

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"listedge/cmd/listedge/node"
	"listedge/internal/changefeed"
	"listedge/limiter"
	"listedge/origin/admin"
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
	if err := client.Ping(ctx).Err(); err != nil {
		r.redisUnreachable(err, o)
		return
	}
	const pings = 5
	began := time.Now()
	for range pings {
		_ = client.Ping(ctx).Err()
	}
	r.ok("redis", fmt.Sprintf("reachable, a PING takes %s", (time.Since(began)/pings).Round(time.Microsecond)))
	for _, use := range node.RedisUses(followed.Prefix() + "doctor-" + rand.Text()) { // keys that no node uses
		r.checkRights(ctx, client, use)
	}
	r.readRedis(ctx, client, followed, says)
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
		r.judge("redis fleet", other != "", admin.Fail, "follows "+identity.String(),
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
			views = append(views, view{e.Name, map[string]string{"version": versionText(e.Version, e.Revision)}})
		}
		versions, same := compare(views, "version")
		text := "none runs"
		if len(views) > 0 {
			text = fmt.Sprintf("%d known: %s", len(views), versions)
		}
		r.judge("redis nodes", !same, admin.Warn, text, text, "finish the upgrade: docs/UPGRADING.md")
	}
}

// redisUnreachable says why there is no answer, and what to do.
func (r *report) redisUnreachable(err error, o redis.UniversalOptions) {
	text, do := err.Error(), node.RedisRemedy(err)
	switch {
	case o.MasterName != "" && strings.Contains(text, redis.Nil.Error()):
		text, do = fmt.Sprintf("the Sentinels know no master %q", o.MasterName), "use their name for the master in --redis-url"
	case o.TLSConfig == nil && (errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF)):
		do = "use rediss:// if that port speaks TLS, and check the server"
	case o.TLSConfig != nil && errors.Is(err, context.DeadlineExceeded):
		text, do = "no answer to the TLS handshake: "+text, "use redis:// if that port does not speak TLS, and check the server"
	}
	r.fail("redis", text, do)
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
	r.judge("redis version", 100*major+minor < 602, admin.Fail, text, version+" is too old", "use Redis 6.2 or later") // which has XTRIM MINID
	if err := node.EvictionFailure(info); err != nil {
		r.warn("maxmemory-policy", err.Error(), "set maxmemory-policy to noeviction")
	} else {
		r.ok("maxmemory-policy", info["maxmemory_policy"])
	}
	r.judge("maxmemory", info["maxmemory"] == "0", admin.Warn, info["maxmemory_human"], "not set: pages may take all memory of the machine", "set maxmemory")
}

// checkRights sends the commands of one use of Redis, and reports what is refused: for
// lack of a right, of memory, or by a server that is no master.
func (r *report) checkRights(ctx context.Context, client redis.UniversalClient, use node.RedisUse) {
	var lacking []string
	var refused error
	for _, command := range use.Commands {
		err := client.Do(ctx, command...).Err()
		switch {
		case err == nil, errors.Is(err, redis.Nil), redis.HasErrorPrefix(err, "NOSCRIPT"):
		case redis.IsPermissionError(err):
			right := "~listedge:*"
			if _, named, ok := strings.Cut(err.Error(), "run the '"); ok {
				name, _, _ := strings.Cut(named, "'")
				right = "+" + name
			}
			if !slices.Contains(lacking, right) {
				lacking = append(lacking, right)
			}
		case refused == nil:
			refused = err
		}
	}
	switch subject := "redis " + use.Name; {
	case len(lacking) > 0:
		r.fail(subject, "the user lacks "+strings.Join(lacking, " "), "ACL SETUSER with all rights that docs/SECURITY.md lists")
	case refused != nil:
		r.fail(subject, "refused: "+refused.Error(), node.RedisRemedy(refused))
	default:
		r.ok(subject, "the user has all rights that a node needs")
	}
}
