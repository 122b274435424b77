"""The scenarios: those that are explored completely, those that are sampled, and those in which nothing is promised."""

from tests.model.vocabulary import scenarios

# Explored completely by every test run.
EXHAUSTIVE = scenarios("""
# Level "writers", ETags that never come back.
overwrite first || sharded read; over third
overwrite first || sharded read, sharded read; over third
overwrite first || read slot 0, read, read slot 0; over hole-at-start
overwrite first, overwrite second || sharded read, sharded read; over third
overwrite first || read, sharded read; over hole-at-start
overwrite hole-at-start || sharded read, sharded read; over third
overwrite hole-at-end || sharded read, sharded read; over hole-at-start
overwrite first, overwrite hole-at-start || sharded read, sharded read; over hole-at-end
overwrite first, overwrite hole-at-start || read slot 1, read slot 1; over hole-at-end
write first || sharded read; orphans hole-at-start
write hole-at-start || sharded read, sharded read
delete, write first || sharded read, sharded read; over third
overwrite first || delete || sharded read, sharded read; over third
write first || write second; over third
overwrite first || sharded read, sharded read; over untagged third
overwrite first || read, read byte; over third
overwrite first || size, exists || read byte, read; over third
write first || exists, size, read
write if absent first || write if absent second || read
write if absent first || write second
write if absent first || write second; orphans third
write if absent first || write if absent second || read; orphans third
write if absent first || read, read; over third
write if absent first || delete || read; over third
write if absent first || write if absent second; one fault
overwrite first || read; three parts, over third
overwrite first || sharded read, sharded read; three parts, over third
write first || write second || read; one part, over third
change x || change y || read; one part, over third
change x || write second || delete; one part, over third
change x || change y; one part, over third, two faults
write if absent first || write second || read; one part
write first, write second || read, read; over third, crashes a
overwrite first, overwrite second || sharded read; over third, crashes a
write first, delete, write second || read, read; crashes a
# A delete next to writes: the anchor alone.
write first || delete || read; over third
write first || delete || read
overwrite first || overwrite second || delete; over third
write first || write second || delete; orphans third
write first || delete || delete; over third
write first || delete; over third, one fault, lost deletes
write first || write second || delete; broken promise
# Read-modify-write.
change x || change y
change x || change y; orphans third
change x || write second; over third
change x || overwrite second; over third
change x || write second
change x || write second; orphans third
change x || delete, write third; over third
change x || delete || read; over third
change x || change y; over third, one fault
change - || change x; over hole-at-start
change x || change y; over untagged third
# Level "exclusive".
write first, write second || read, read; over third, exclusive, crashes a
write first, write second || sharded read; exclusive, crashes a
write first, delete, write second || read, read; exclusive, crashes a
change x, change y || read, read; over third, exclusive, crashes a
write first, write second || read; exclusive, two faults
write first, write second || read, read; exclusive, no conditions, crashes a
write first, delete, write second || read, read; exclusive, no conditions, crashes a
write first, write second || read; exclusive, no conditions, two faults
# ETags that come back with the bytes.
write second || delete || read; over first, equal ETags
# Beside a dead writer that other clients cannot tell from one at work.
overwrite first, overwrite second, overwrite first, overwrite first, overwrite second; over first, dead writer
  second, equal ETags, few leftovers
overwrite first, overwrite second, overwrite first || read; over first, dead writer second, equal ETags, few leftovers
# A writer stalls for so long that `repair` or another writer takes it for dead.
overwrite first || repair; over third, stall
change x || repair; over third, stall
write first || repair; equal ETags, stall
# Level "full".
write first || delete || read; full
write first || delete || read; over third, full
write first || delete || delete; over third, full
write first || delete; over third, full, one fault
overwrite first || delete; over third, full, late PUT, repeated write
change x || write second; over third, full
overwrite second || delete; over first, full, equal ETags
# Local disks.
write first || read, read byte; over third, local
write first || read byte, read byte; over third, local
write first, delete || read; local, crashes a
write first, write second || write third; over third, local, crashes a
write first || size, size; over third, local
write if absent first || write second || delete; local
write first || exists, read || read byte; local
write first || write second; three parts, over third, local, crashes a
write first || write second || read; one part, over third, local
# A repair beside living writers.
repair || read, read; over third, interrupted first
repair || change x; over third, interrupted first
repair || delete || read; over third, interrupted first
repair || write first
overwrite second || repair, overwrite first; over first
overwrite second || repair, overwrite first; over first, embeds, equal ETags
overwrite second, overwrite first || repair; over first, exclusive, embeds, equal ETags
repair || delete; over third, interrupted first, full
repair || write first; orphans third, local
# Old versions of MinIO.
write first || delete || read; over third, equal ETags, MinIO
overwrite first || delete; over third, full, equal ETags, MinIO
# The anchor of an overwrite contains the other parts, so that there is no staged copy.
overwrite first || read; over third, embeds
overwrite first || sharded read; over third, embeds
overwrite first || overwrite second; over third, embeds
write first || overwrite second || read; orphans third, embeds
overwrite second || change x; over first, embeds
overwrite second || delete; over first, embeds
overwrite first || read; over third, embeds, two faults
overwrite first, overwrite second || read; over third, embeds, crashes a
repair || overwrite second; over third, interrupted first, embeds
overwrite first || read; over third, exclusive, embeds, one fault
write first || delete; over third, full, embeds
write first || delete; full, embeds
overwrite second || overwrite first; over first, embeds, equal ETags, leaves nothing
overwrite same-index || overwrite second; over first, embeds, equal ETags, leaves nothing
overwrite second || change x; over first, embeds, equal ETags, leaves nothing
overwrite second, overwrite first || overwrite first; over first, embeds, equal ETags, leaves nothing
overwrite second, overwrite first || overwrite first; over first, embeds, equal ETags, leaves nothing, crashes a
overwrite second || repair; over first, embeds, equal ETags, leaves nothing, stall
overwrite second || delete; over first, full, embeds, equal ETags, leaves nothing
overwrite second || overwrite first; over first, embeds, equal ETags, leaves nothing, late PUT, repeated write
overwrite first || overwrite second; three parts, over third, embeds
# The chunk was written over before, so that all parts are written at the same time.
overwrite first || read; over embedded third, embeds, equal ETags, leaves nothing
overwrite first || sharded read; over embedded third, embeds, equal ETags, leaves nothing
overwrite first || sharded read, sharded read; over embedded third, embeds, equal ETags, leaves nothing
overwrite hole-at-end || sharded read; over embedded hole-at-start, embeds, equal ETags, leaves nothing
overwrite second || overwrite first; over embedded first, embeds, equal ETags, leaves nothing
overwrite same-index || overwrite second; over embedded first, embeds, equal ETags, leaves nothing
overwrite second || change x; over embedded first, embeds, equal ETags, leaves nothing
overwrite hole-at-end || change -; over embedded hole-at-start, embeds, equal ETags, leaves nothing
change y || change x; over embedded third, embeds, equal ETags, leaves nothing
overwrite second || delete; over embedded first, embeds, equal ETags, leaves nothing
overwrite first || read; over embedded third, embeds, equal ETags, leaves nothing, two faults
overwrite first, overwrite second || read; over embedded third, embeds, equal ETags, leaves nothing, crashes a
write first || delete; over embedded third, full, embeds, equal ETags, leaves nothing
# Partial writes of a shard that are merged with those of other clients.
change slot 0x || change slot 1y || read; one part, over third
change slot 0x || change slot 1y; over third
change slot 0x || change slot 1y, change slot 1z; one part, over third
change slot 0x || change slot 0y; one part, over third
change slot 0x || change slot 0y; over third
change slot 0x || change slot 1y || change slot 1z; one part, over hole-at-end
change slot 0x || change slot 1y
change slot 0x || change slot 1y || read; one part
change slot 0x || sharded read; over hole-at-start
change slot 0x || write second || read; one part, over third
change slot 0x || write second; over third
change slot 0x || delete || read; one part, over third
change slot 1! || change slot 0x || read; one part, over hole-at-start
change slot 1! || change slot 0x; over hole-at-start
change slot 1! || change slot 0! || read; one part, over third
change slot 0x || change slot 1y; one part, over third, one fault
change slot 0x, change slot 0z || change slot 1y; one part, over third, crashes a
change slot 0x || change slot 1y; over third, crashes a
change slot 0x || change slot 1y; one part, over third, equal ETags
change slot 0x || change slot 1y; one part, over third, full
change slot 0x || change slot 1y; over third, local, fewer attempts
change slot 0x || change slot 0y; over third, local, fewer attempts
change slot 1~ || change slot 0x; over hole-at-start, local, fewer attempts
""")

# Explored in minutes, the largest of them not to their end.
DEEP = scenarios("""
change x || overwrite first, overwrite third; over third
write first || write second; one fault
write first || write second || read
repair || write first; over third, local, fewer attempts
overwrite second || overwrite first; over first, equal ETags
write first || read; over third, local, fewer attempts
write first || read, size; over third, local, fewer attempts
write first || write second || sharded read
write hole-at-start || write second || sharded read
write first || overwrite second || read
overwrite first || overwrite second || read; over third
overwrite first, overwrite second || sharded read; over third, two ranges
overwrite first || sharded read, sharded read; over third, retries
overwrite first || overwrite second || sharded read; over third
write first || write second || read; over third
overwrite first || overwrite second || read; over untagged third
overwrite first || overwrite second || read; orphans third
write first || write second; three parts
overwrite first || overwrite second; three parts, over third
overwrite first, overwrite second || overwrite third; over third, crashes a
overwrite first, overwrite second || sharded read, sharded read; over third, crashes a
change x, change y || change z; over third, crashes a
overwrite first || overwrite second; over third, one fault
write first || write second; over third, one fault
write first || write second; late PUT
overwrite first || overwrite second; over third, late PUT
change x || change y || read; over third
change x, read || overwrite second; over third, one fault
change x || overwrite second || read; over third
change x || overwrite second; over third, one fault
change x || overwrite second; over third, late PUT
change x || write second; one fault
change x || change y; over third, late PUT
overwrite second || overwrite first || read; over first, equal ETags
overwrite same-index || overwrite first; over first, equal ETags
overwrite hole-at-start || overwrite hole-at-end; over hole-at-start, equal ETags
write first || write second; equal ETags
write first || write first; equal ETags
overwrite first || overwrite second; three parts, over first, equal ETags
overwrite second || overwrite first; over first, equal ETags, one fault
overwrite second || overwrite first; over first, equal ETags, late PUT, repeated write
change x || change y; over first, equal ETags
change x || overwrite second; over first, equal ETags
overwrite second, overwrite first || overwrite first; over first, equal ETags, crashes a
overwrite first, overwrite second || overwrite first; over first, dead writer second, equal ETags
overwrite second || overwrite first || read; over first, dead writer second, equal ETags
overwrite first || repair; over third, stalls
overwrite first || overwrite second || repair; over third, stall
overwrite first || repair; over third, one fault, stall
overwrite second || repair; over first, equal ETags, stall
change x || repair; over first, equal ETags, stall
overwrite second || overwrite first; over first, equal ETags, stall
repair || overwrite first; over first, interrupted second, equal ETags, stall
write first, write second || repair; over third, exclusive, crashes a, stall
write first || delete || write second; full
write first || delete || write second; over third, full
change x || delete || change y; over third, full
write first || read, read; over third, local, fewer attempts
write first || read, sharded read; over third, local, fewer attempts
write first || sharded read, sharded read; over third, local, fewer attempts
write first || sharded read; over third, local, two ranges, fewer attempts
write first || sharded read; over third, local, fewer attempts
write first || sharded read, sharded read; over hole-at-start, local, fewer attempts
write first, delete || read; over third, local, crashes a, fewer attempts
write first || write second || read; over third, local, fewer attempts
change x || write second || delete; over third, local, fewer attempts
change x || change y; over third, local, crashes a, fewer attempts
change ! || change x; over third, local, fewer attempts
write first || read; three parts, over third, local, fewer attempts
write first, write second || read, read; over third, local, exclusive, crashes a, fewer attempts
repair || overwrite second || read; over third, interrupted first
repair || overwrite second || sharded read; over third, interrupted first
repair || repair || overwrite second; over third, interrupted first
overwrite second || repair, overwrite first; over first, equal ETags
overwrite second, overwrite first || repair; over first, exclusive
repair || overwrite first, overwrite second; over third
repair || overwrite second; over first, interrupted second, equal ETags
repair || overwrite first; over first, interrupted second, equal ETags
repair || overwrite second, overwrite first; over first, interrupted second, equal ETags
repair || write first; orphans first, equal ETags
overwrite second || repair; over embedded first, embeds, equal ETags, leaves nothing, stall
overwrite second, overwrite first || overwrite first; over embedded first, embeds, equal ETags, leaves nothing,
  crashes a
overwrite second || overwrite first; over embedded first, embeds, equal ETags, leaves nothing, late PUT, repeated
  write
overwrite second || overwrite first || overwrite first; over embedded first, embeds, equal ETags, leaves nothing
""")

# Sampled with random orders of requests: they have too many.
RANDOM = scenarios("""
write first || write second || overwrite third || read, read || read, sharded read; three parts, two faults
overwrite first, write hole-at-start || overwrite third, overwrite first || sharded read, sharded read || read,
  sharded read; over third, two faults, crashes ab
overwrite first, overwrite hole-at-start || overwrite hole-at-end, overwrite second || sharded read, sharded read,
  sharded read || read slot 1, read slot 0, sharded read; over third, two ranges, crashes a
overwrite first, overwrite second || overwrite second, write first || read, sharded read; over third, late PUTs
change x, change y || overwrite first, change z || delete, write third || read, sharded read; over third, one fault,
  crashes b
overwrite first, overwrite second || overwrite second, overwrite first || overwrite first || read, sharded read ||
  repair; over first, equal ETags, one fault, crashes ab
overwrite first, overwrite second || overwrite second, overwrite first || overwrite first || read, sharded read;
  over first, equal ETags, late PUTs, repeated write
change x, overwrite second || overwrite second, change y || change z || read, sharded read; over first, equal ETags,
  one fault, crashes a
overwrite first, overwrite second, overwrite first || overwrite second, overwrite first, overwrite second ||
  overwrite first, overwrite first || read, sharded read; over first, dead writer second, equal ETags, late PUTs,
  repeated write, rewrites
overwrite first, overwrite second || change y, overwrite second || overwrite first || read || repair; over first,
  dead writer second, equal ETags, crashes ab, stalls
write first, overwrite second || overwrite second, change y || overwrite first || read, sharded read || repair,
  repair; over first, crashes ab, stalls
write first, write second || write second || delete, delete || delete || read, read; full, one fault, rewrites,
  crashes ac
write first, write second || write second || overwrite first || delete, delete || read, read; over first, full,
  equal ETags, crashes ad
repair, repair || overwrite second, write first || change x || read, sharded read; over third, interrupted first,
  one fault, crashes ab
write first, delete || change x, write second || write if absent third, change ! || read, sharded read, read byte ||
  sharded read, size, exists; over third, local, crashes ab
change slot 0x || change slot 1y || read; over third, local
change slot 0x || change slot 1y; over third, local, crashes a, fewer attempts
change slot 0x || change slot 1y || change slot 0z || read; over third
change slot 0x || change slot 1y, change slot 1z; over third, late PUT, repeated write
change slot 0x || change slot 1y || read; over third, equal ETags
""")

# What the protocol does not promise, and its documents say so: each of these has to be found, or they say too little.
LIMITS = scenarios("""
write first || write second || delete
write first || delete || read; one fault
write first, delete; late PUT
repair || write first; orphans third
change ! || change x; over third
change - || change x; over hole-at-start, equal ETags
write first, write second; exclusive, no conditions, late PUT
change x || delete; over third, equal ETags, MinIO
write first || write second; over third, exclusive
""")
