package org.apache.hudi.aws.transaction.lock;

import com.amazonaws.AmazonServiceException;
import com.amazonaws.client.builder.AwsClientBuilder;
import com.amazonaws.services.s3.AmazonS3;
import com.amazonaws.services.s3.AmazonS3ClientBuilder;
import com.amazonaws.services.s3.model.GetObjectRequest;
import com.amazonaws.services.s3.model.ObjectMetadata;
import com.amazonaws.services.s3.model.PutObjectRequest;
import com.amazonaws.services.s3.model.S3Object;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.util.Properties;
import org.apache.hudi.client.transaction.lock.StorageLockClient;
import org.apache.hudi.client.transaction.lock.models.LockGetResult;
import org.apache.hudi.client.transaction.lock.models.LockUpsertResult;
import org.apache.hudi.client.transaction.lock.models.StorageLockData;
import org.apache.hudi.client.transaction.lock.models.StorageLockFile;
import org.apache.hudi.common.util.Option;
import org.apache.hudi.common.util.collection.Pair;

/**
 * Stands in for the S3 client of Hudi's StorageBasedLockProvider, whose module (hudi-aws of 1.x) is on no registry.
 * The provider above it is Hudi's own. Endpoint and region: AWS_ENDPOINT_URL, AWS_REGION; keys: the SDK's chain.
 */
public class S3StorageLockClient implements StorageLockClient {
  private static final int NOT_FOUND = 404, PRECONDITION_FAILED = 412, TOO_MANY = 503;
  private final AmazonS3 s3;
  private final String bucket, key;

  public S3StorageLockClient(String owner, String uri, Properties properties) {
    String endpoint = System.getenv("AWS_ENDPOINT_URL"), region = System.getenv("AWS_REGION");
    s3 = AmazonS3ClientBuilder.standard()
        .withEndpointConfiguration(new AwsClientBuilder.EndpointConfiguration(endpoint, region))
        .withPathStyleAccessEnabled(true)
        .build();
    Pair<String, String> place = StorageLockClient.parseBucketAndPath(uri);
    bucket = place.getLeft();
    key = place.getRight();
  }

  @Override
  public Pair<LockUpsertResult, Option<StorageLockFile>> tryUpsertLockFile(
      StorageLockData lock, Option<StorageLockFile> before) {
    byte[] data = StorageLockFile.toByteArray(lock);
    ObjectMetadata described = new ObjectMetadata();
    described.setContentLength(data.length);
    PutObjectRequest put = new PutObjectRequest(bucket, key, new ByteArrayInputStream(data), described);
    if (before.isPresent()) {
      put.putCustomRequestHeader("If-Match", before.get().getVersionId());
    } else {
      put.putCustomRequestHeader("If-None-Match", "*");
    }
    try {
      return Pair.of(LockUpsertResult.SUCCESS, Option.of(new StorageLockFile(lock, s3.putObject(put).getETag())));
    } catch (AmazonServiceException refused) {
      int status = refused.getStatusCode();
      LockUpsertResult result = status == PRECONDITION_FAILED ? LockUpsertResult.ACQUIRED_BY_OTHERS
          : status == TOO_MANY ? LockUpsertResult.THROTTLED : LockUpsertResult.UNKNOWN_ERROR;
      return Pair.of(result, Option.empty());
    } catch (RuntimeException failed) {
      return Pair.of(LockUpsertResult.UNKNOWN_ERROR, Option.empty());
    }
  }

  @Override
  public Pair<LockGetResult, Option<StorageLockFile>> readCurrentLockFile() {
    try (S3Object found = s3.getObject(new GetObjectRequest(bucket, key))) {
      String version = found.getObjectMetadata().getETag();
      return Pair.of(LockGetResult.SUCCESS, Option.of(StorageLockFile.createFromStream(found.getObjectContent(), version)));
    } catch (AmazonServiceException refused) {
      boolean absent = refused.getStatusCode() == NOT_FOUND;
      return Pair.of(absent ? LockGetResult.NOT_EXISTS : LockGetResult.UNKNOWN_ERROR, Option.empty());
    } catch (IOException | RuntimeException failed) {
      return Pair.of(LockGetResult.UNKNOWN_ERROR, Option.empty());
    }
  }

  @Override
  public Option<String> readObject(String uri, boolean checkFirst) {
    Pair<String, String> place = StorageLockClient.parseBucketAndPath(uri);
    try {
      return Option.of(s3.getObjectAsString(place.getLeft(), place.getRight()));
    } catch (RuntimeException absent) {
      return Option.empty();
    }
  }

  @Override
  public boolean writeObject(String uri, String content) {
    Pair<String, String> place = StorageLockClient.parseBucketAndPath(uri);
    try {
      s3.putObject(place.getLeft(), place.getRight(), content);
      return true;
    } catch (RuntimeException failed) {
      return false;
    }
  }

  @Override
  public void close() {
    s3.shutdown();
  }
}
