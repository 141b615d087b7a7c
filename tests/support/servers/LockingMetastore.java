import org.apache.hadoop.hive.conf.HiveConf;
import org.apache.hadoop.hive.metastore.HiveMetaStore;
import org.apache.hadoop.hive.metastore.txn.TxnDbUtil;

/** Hive's metastore with the tables of locks, which a schema made by itself lacks. Arguments: the metastore's. */
public class LockingMetastore {
  public static void main(String[] given) throws Throwable {
    TxnDbUtil.prepDb(new HiveConf());
    HiveMetaStore.main(given);
  }
}
