# Makes zoo.cfg from ZOO_MY_ID and ZOO_SERVERS (`server.1=HOST:2888:3888;2181 server.2=...`) and becomes the server.
set -euo pipefail
data="$HOME/zookeeper"
mkdir -p "$data"
echo "$ZOO_MY_ID" > "$data/myid"
{
  printf '%s\n' "dataDir=$data" tickTime=2000 initLimit=10 syncLimit=5 admin.enableServer=false
  tr ' ' '\n' <<< "$ZOO_SERVERS"
} > "$data/zoo.cfg"
jars="$(python3 -c 'import pyspark; print(pyspark.__path__[0])')/jars"
exec java -Xmx128m -XX:+UseSerialGC -cp "$jars/*" org.apache.zookeeper.server.quorum.QuorumPeerMain "$data/zoo.cfg"
