package doctor

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"listedge/cache"
	"listedge/cmd/listedge/node"
	"listedge/internal/changefeed"
	"listedge/internal/remedy"
	"listedge/limiter"
	"listedge/origin/admin"
)

// checkRedis checks the Redis that nodes write to, and puts into says what it knows of the fleet
// that follows the database.
func checkRedis(ctx context.Context, url string, followed *changefeed.Followed, says map[string]string) []admin.Finding {
	o, _ := node.ParseRedisURL(url) // the flags have been checked
	client := node.NewRedisClient(o)
	defer client.Close()
	err := refusal(ctx, client, followed.Prefix()+"doctor-"+rand.Text())
	found := []admin.Finding{admin.FindingOf("redis", admin.Fail, "the user has all rights that a node needs", err, node.RedisRemedy(err))}
	if err != nil {
		return found
	}
	if followed.Digest() != "" {
		if epoch, err := changefeed.NewRedis(client, followed).Epoch(ctx); err == nil {
			says["log of changes"] = "epoch " + cmp.Or(epoch, "none")
			followed.ObserveEpoch(epoch)
		}
		if other, _ := changefeed.NewClaim(client, followed).Other(ctx); other != "" {
			found = append(found, finding("fleet", admin.Fail, "the fleet follows "+other+", and --database-url names another database",
				"see ListedgeWrongDatabase in the runbook"))
		}
	}
	if err := followed.OldTimeline(); err != nil {
		found = append(found, admin.FindingOf("timeline", admin.Fail, "", err, followed.OldTimelineRemedy()))
	}
	info, err := client.Info(ctx).Result()
	return append(found, judgeInfo(info, err)...)
}

// judgeInfo judges the version and the memory settings in the answer to INFO.
func judgeInfo(answer string, err error) []admin.Finding {
	if err != nil {
		return []admin.Finding{admin.FindingOf("redis version", admin.Warn, "", err, node.RedisRemedy(err))}
	}
	info, old, unbounded := node.ParseInfo(answer), error(nil), error(nil)
	var major, minor int
	version := info["redis_version"] // of Valkey, the Redis that it is compatible with
	_, _ = fmt.Sscanf(version, "%d.%d", &major, &minor)
	if 100*major+minor < 602 { // 6.2 has XTRIM MINID
		old = errors.New(version + " is too old")
	}
	if info["maxmemory"] == "0" {
		unbounded = errors.New("not set: pages may take all memory of the machine")
	}
	return []admin.Finding{
		admin.FindingOf("redis version", admin.Fail, version, old, "use Redis 6.2 or later"),
		admin.FindingOf("redis eviction", admin.Warn, info["maxmemory_policy"], node.EvictionFailure(info), ""),
		admin.FindingOf("redis maxmemory", admin.Warn, info["maxmemory_human"], unbounded, "set maxmemory"),
	}
}

// refusal sends Redis all commands of nodes, with keys that begin with a prefix that no node uses.
// It returns why some fail: for lack of rights, all of which it names, or by another error.
func refusal(ctx context.Context, client redis.UniversalClient, prefix string) (failed error) {
	var lacking []string
	for _, command := range slices.Concat([][]any{{"ping"}}, cache.RedisCommands(prefix), limiter.RedisCommands(prefix), changefeed.RedisCommands(prefix)) {
		switch err := client.Do(ctx, command...).Err(); {
		case err == nil, err == redis.Nil, redis.HasErrorPrefix(err, "NOSCRIPT"):
		case redis.IsPermissionError(err):
			right := "~listedge:*"
			if _, named, ok := strings.Cut(err.Error(), "run the '"); ok {
				name, _, _ := strings.Cut(named, "'")
				right = "+" + name
			}
			lacking = append(lacking, right)
		case errors.As(err, new(redis.Error)): // such as a script that lacks a right
			failed = err
		default: // the others would get no answer, either
			return err
		}
	}
	if slices.Sort(lacking); len(lacking) > 0 {
		return remedy.Add(errors.New("the user lacks "+strings.Join(slices.Compact(lacking), " ")), "ACL SETUSER with all rights that docs/SECURITY.md lists")
	}
	return failed
}
